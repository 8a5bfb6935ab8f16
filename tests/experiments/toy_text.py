"""A small text with something to learn in it: each word has two that often follow."""

import random


def write_toy_text(path, words=60, sentences=400):
    draw = random.Random(0)
    follow = {i: (draw.randrange(words), draw.randrange(words)) for i in range(words)}
    names = ["".join(draw.choices("abcdefghijklmnop", k=5)) for _ in range(words)]
    with open(path, "w") as file:
        for _ in range(sentences):
            word, line = draw.randrange(words), []
            for _ in range(draw.randint(4, 9)):
                line.append(names[word])
                word = draw.choice(follow[word]) if draw.random() < 0.9 else draw.randrange(words)
            file.write(" ".join(line) + "\n")
    return path
