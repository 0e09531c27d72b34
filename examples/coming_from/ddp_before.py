"""A script of PyTorch's DistributedDataParallel; ddp_after.py does the same with a strategy.

    $ torchrun --nproc-per-node 2 examples/coming_from/ddp_before.py

It is for reading: PyTorch is not installed with this package, so no output is shown, and no test
runs the script; one checks its syntax. Written after the documentation of PyTorch 2. What is marked
"DDP" is no longer needed in ddp_after.py.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH_SIZE = 10, 32  # of each process

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # DDP
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])  # DDP
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)
dataset = TensorDataset(images[:1500], labels[:1500])
sampler = DistributedSampler(dataset, shuffle=True)  # DDP
loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(model.to(device))  # DDP
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_of = torch.nn.CrossEntropyLoss()

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # DDP: otherwise every epoch has the same order
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model(x.to(device)), y.to(device)).backward()
        optimizer.step()

if rank == 0:  # DDP
    with torch.no_grad():
        predicted = model.module(images[1500:].to(device)).argmax(dim=1).cpu()
    print(f"test accuracy: {(predicted == labels[1500:]).float().mean():.3f}")
    torch.save(model.module.state_dict(), "before.pt")
dist.destroy_process_group()  # DDP
