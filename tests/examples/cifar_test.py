"""The ResNet: the format of CIFAR-10's files, and training that resumes from a checkpoint."""

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.training


@pytest.fixture
def data(example):
    return example("cifar_data", "--directory=unused")


@pytest.fixture
def resnet(example):
    return example("cifar_resnet", "--data=unused", "--logs=unused")


def test_the_files_are_those_of_cifar_10(data, tmp_path):
    """Five files to train on and one to test on; a record is a label and 3 x 32 x 32 bytes."""
    data.write(tmp_path, images=13, test_images=4, seed=1)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert sizes == [3073 * count for count in (3, 3, 3, 2, 2, 4)]
    labels = np.fromfile(tmp_path / "data_batch_1.bin", np.uint8).reshape([-1, 3073])[:, 0]
    assert labels.max() < 10
    with pytest.raises(FileExistsError, match="cannot contain images yet. Received: .*_batch_1"):
        data.write(tmp_path, images=13, test_images=4, seed=1)


def test_classes_differ_in_their_direction(data):
    """The spectrum of an image is largest at the frequency of its class."""
    records = data.make_records(400, np.random.default_rng(0))
    labels, images = records[:, 0], records[:, 1:].reshape([-1, 3, 32, 32]).astype(float)
    gray = images.mean(axis=1) - images.mean(axis=(1, 2, 3))[:, None, None]
    spectra = abs(np.fft.fft2(gray))[:, :, :16]
    y, x = np.unravel_index(spectra.reshape([400, -1]).argmax(axis=1), spectra.shape[1:])
    angles = np.arctan2((y + 16) % 32 - 16, x) % np.pi
    off = abs((angles - np.pi * labels / 10 + np.pi / 2) % np.pi - np.pi / 2)
    assert np.median(off) < 0.15 and np.mean(off < np.pi / 5) > 0.9


def test_a_record_becomes_an_image_with_its_channels_last(resnet, tmp_path):
    channels = np.arange(3 * 32 * 32).reshape([3, 32, 32]) % 251
    record = np.concatenate([[7], channels.ravel()]).astype(np.uint8)
    path = tmp_path / "data_batch_1.bin"
    np.concatenate([record, record]).tofile(path)
    dataset = resnet.read([path])
    assert int(dataset.cardinality()) == 2
    image, label = next(iter(dataset))
    assert int(label) == 7
    np.testing.assert_allclose(image, channels.transpose([1, 2, 0]) / 127.5 - 1, atol=1e-6)


def test_an_image_is_shifted_within_a_black_frame(resnet):
    shifted, label = resnet.augment(tf.ones([32, 32, 3]), tf.constant(3))
    assert shifted.shape == [32, 32, 3] and int(label) == 3
    inside = shifted.numpy()[..., 0].sum()
    assert 28 * 28 <= inside <= 32 * 32


def test_a_directory_without_the_files_is_an_error(run, tmp_path):
    output = run("cifar_resnet", f"--data={tmp_path}", f"--logs={tmp_path}", fails=True)
    assert (
        f"must be a directory with data_batch_*.bin and test_batch.bin. Received: {tmp_path}"
        in output
    )


@pytest.mark.slow
def test_a_second_run_trains_the_remaining_epochs_only(data, run, tmp_path):
    data.write(tmp_path, images=100, test_images=10, seed=1)
    flags = [f"--data={tmp_path}", f"--logs={tmp_path}/logs", "--batch_size=50"]
    # Keras does not number a single epoch.
    output = run("cifar_resnet", "--epochs=1", *flags, under=("--workers", "2"))
    assert "test accuracy: " in output
    output = run("cifar_resnet", "--epochs=2", *flags, under=("--workers", "2"))
    assert "Epoch 2/2" in output and "Epoch 1/2" not in output
    assert list((tmp_path / "logs/train").glob("events.out.tfevents.*"))
