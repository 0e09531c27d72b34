"""Fine-tunes a BERT of KerasHub by LoRA in mixed_bfloat16, on one worker or on several.

    $ tf-config run --workers 2 examples/bert_lora.py
    [worker 0] accuracy of the whole model: 1.000
    [worker 0] LoRA and the head have 2946 of 87874 parameters
    [worker 0] accuracy after fine-tuning: 1.000

It needs KerasHub: `pip install keras-hub`. The model is a small `BertBackbone` with random weights,
and the texts are synthetic, so nothing is downloaded. With a preset, the first step falls away:
`keras_hub.models.BertBackbone.from_preset("bert_tiny_en_uncased")`.

First, the whole model learns which of eight words occurs in a text. Then `enable_lora` freezes the
backbone and adds matrices of rank 4 to the queries and values of its attention layers. These and a
new head learn whether the number of the word is odd. Under `mixed_bfloat16`, layers compute in
bfloat16, the variables stay float32, and the loss needs no scaling. Gradients are exchanged as
float32.
"""

from __future__ import annotations

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from absl import app, flags

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 4, "Epochs of each of the two steps.", 1)
flags.DEFINE_integer("batch_size", 64, "Texts in a step, of all workers together.", 1)
flags.DEFINE_integer("texts", 2048, "Texts to train on in each of the two steps.", 1)
flags.DEFINE_integer("rank", 4, "Rank of the matrices that LoRA adds.", 1)

LENGTH, VOCABULARY = 16, 200
PADDING, START, WORDS = 0, 1, range(2, 10)  # tokens


def make_texts(count: int, classes: int, seed: int) -> tf.data.Dataset:
    """Returns inputs of a BERT, and the number of the word in each text, modulo `classes`."""
    random = np.random.default_rng(seed)
    tokens = random.integers(20, VOCABULARY, [count, LENGTH])
    tokens[:, 0] = START
    lengths = random.integers(LENGTH // 2, LENGTH + 1, count)
    numbers = random.integers(len(WORDS), size=count)
    for text, length, number in zip(tokens, lengths, numbers, strict=True):
        text[length:] = PADDING
        text[random.integers(1, length)] = WORDS[number]
    inputs = {
        "token_ids": tokens.astype("int32"),
        "segment_ids": np.zeros_like(tokens, "int32"),
        "padding_mask": (tokens != PADDING).astype("int32"),
    }
    return tf.data.Dataset.from_tensor_slices((inputs, numbers % classes))


def make_classifier(backbone: keras.Model, classes: int, learning_rate: float) -> keras.Model:
    """Returns a compiled model with a new head."""
    model = keras_hub.models.BertTextClassifier(backbone, classes, preprocessor=None)
    model.compile(
        keras.optimizers.AdamW(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def count_parameters(weights: list) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are accepted. Received: {argv[1:]}.")
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    strategy = strategies.from_tf_config()

    def batches(count: int, classes: int, seed: int) -> tf.data.Dataset:
        return make_texts(count, classes, seed).batch(FLAGS.batch_size)

    with strategy.scope():
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=VOCABULARY,
            num_layers=2,
            num_heads=2,
            hidden_dim=64,
            intermediate_dim=128,
            max_sequence_length=LENGTH,
        )
        model = make_classifier(backbone, len(WORDS), 2e-3)
    model.fit(batches(FLAGS.texts, len(WORDS), seed=1), epochs=FLAGS.epochs, shuffle=False)
    _, accuracy = model.evaluate(batches(512, len(WORDS), seed=2), verbose=0)
    strategy.print(f"accuracy of the whole model: {accuracy:.3f}")

    with strategy.scope():
        backbone.enable_lora(FLAGS.rank)  # before compile, which takes the trainable variables
        model = make_classifier(backbone, 2, 5e-3)
    trained, all_ = map(count_parameters, (model.trainable_weights, model.weights))
    strategy.print(f"LoRA and the head have {trained} of {all_} parameters")
    model.fit(batches(FLAGS.texts, 2, seed=3), epochs=FLAGS.epochs, shuffle=False)
    _, accuracy = model.evaluate(batches(512, 2, seed=4), verbose=0)
    strategy.print(f"accuracy after fine-tuning: {accuracy:.3f}")
    strategies.verify_equal(strategy, model.variables)
    with strategies.writing("bert.lora.h5", strategy) as path:
        backbone.save_lora_weights(path)


if __name__ == "__main__":
    app.run(main)
