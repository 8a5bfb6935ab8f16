"""Two shipped OCR recognisers repaired: what it costs on rendered text, and what it gains.

    python experiments/repair_ocr.py --out results/repair

For PP-OCRv4 and PP-OCRv6 small, `uncork repair` makes every character argmaxable by the smallest
change of the bias (`bias`: in the ∞-norm, `sum`: in the 1-norm), or by moving rows (`row`). The
original and the repaired file then read the same pictures with onnxruntime, in two fonts:

    text      everyday sentences (Chinese, with numbers and some English), and lines of ten
              characters drawn uniformly from those that the model could already produce and the
              font has
    freed     characters that were unargmaxable and that the font has, alone: all, or a sample
    others    as many that were argmaxable

Counted are time steps whose first class changes, lines that are read otherwise, and characters read
right. How far a freed character stays behind on its own picture, in logits, tells why.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from ocr import Recogniser, covers, render

import uncork

FONTS = (
    "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc",
    "/usr/share/fonts/truetype/arphic/uming.ttc",
)
MODELS = {
    "PP-OCRv4": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "PP-OCRv6 small": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
}
SENTENCES = """今天天气很好，我们去公园散步吧。
请问最近的地铁站怎么走？
这本书我已经看了三遍了。
会议定于下午两点半在三楼举行。
他每天早上六点起床跑步。
北京是中华人民共和国的首都。
欢迎光临，请问您几位？
我想买一张去上海的火车票。
明年我们公司将推出新产品。
医生建议他多喝水，少熬夜。
请在此处签名并注明日期。
学校图书馆晚上九点关门。
她的中文说得非常流利。
这道菜的味道有点儿咸。
昨天的比赛结果让人意外。
请保持安静，禁止吸烟。
银行的营业时间是九点到五点。
春节期间高速公路免费通行。
孩子们在操场上踢足球。
本店商品一经售出概不退换。
电脑出了问题，需要重新启动。
科学家发现了一种新的材料。
我们应该保护环境，节约用水。
订单号：20240315，总计￥128.50元
联系电话：010-62345678
地址：广东省深圳市南山区科技园
总部位于杭州，员工超过3000人
Invoice No. 4471, total USD 96.20
The quick brown fox jumps over the lazy dog.
Please keep this receipt for your records.
温度：25℃ 湿度：60% 风力：3级
第一章 绪论
参考文献见附录二。
截至2023年底，用户数增长了15.6%。
航班CA1234将于18:45起飞。
他问：“你什么时候回来？”
山高水长，江河万里。
落霞与孤鹜齐飞，秋水共长天一色。
学而时习之，不亦说乎？
床前明月光，疑是地上霜。""".splitlines()
WAYS = {"bias": ["--norm", "inf"], "sum": ["--norm", "1"], "row": ["--how", "row"]}
_LINE = 10


def model_path(package: str, inside: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: make test installs it")
    return Path(next(iter(spec.submodule_search_locations)), inside)


def repaired(
    source: Path, out: Path, how: str, certificates: Path | None, margin: float | None
) -> dict[str, Any]:
    """What `uncork repair` wrote, and what it says of it."""
    report = out.with_suffix(".json")
    if out.exists() and report.exists():  # from an earlier run
        return dict(json.loads(report.read_text("utf-8")))
    command = [sys.executable, "-m", "uncork", "repair", str(source), "-o", str(out)]
    command += WAYS[how] + ["--json", str(report), "--quiet"]
    if margin is not None:
        command += ["--margin", str(margin)]
    if certificates is not None:
        command += ["--audit", str(certificates)]
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    found["seconds_in_all"] = time.perf_counter() - begun
    report.write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    return found


def text_lines(labels: tuple[str, ...], lost: set[int], font: str, count: int) -> list[str]:
    """The sentences, and lines of characters the model could produce before it was repaired."""
    rng = np.random.default_rng(0)
    able = [
        label
        for k, label in enumerate(labels)
        if k not in lost and len(label) == 1 and label.isprintable() and not label.isspace()
        and covers(font, label)
    ]  # fmt: skip
    drawn = rng.choice(len(able), size=(count, _LINE))
    known = [line for line in SENTENCES if covers(font, line.replace(" ", ""))]
    return known + ["".join(able[k] for k in row) for row in drawn]


def compare(
    before: Recogniser,
    after: Recogniser,
    pictures: list[np.ndarray],
    freed: set[int],
    width: int,
    meant: list[int] | None = None,
) -> dict[str, Any]:
    """Both models on the same pictures. `behind`: how many logits the class `meant` by a picture
    stays behind the first, at the time step where it is nearest."""
    was = before.frames(pictures, narrowest=width)
    now, gaps = [], []
    for k, scores in enumerate(after.scores(pictures, narrowest=width)):
        now.append(scores.argmax(1))
        if meant is not None:
            with np.errstate(divide="ignore"):
                gap = np.log(scores.max(axis=1)) - np.log(scores[:, meant[k]])
            gaps.append(float(gap.min()))
    steps = sum(len(a) for a in was)
    changed = sum(int((a != b).sum()) for a, b in zip(was, now, strict=True))
    to_freed = sum(int(np.isin(b, list(freed)).sum()) for b in now)
    read = [before.decode(a) for a in was], [after.decode(b) for b in now]
    result = {
        "pictures": len(pictures), "time_steps": steps, "steps_changed": changed,
        "share_changed": changed / steps, "steps_to_freed": to_freed,
        "texts_changed": sum(a != b for a, b in zip(*read, strict=True)), "read": read,
    }  # fmt: skip
    if gaps:
        result["behind"] = np.quantile(gaps, [0, 0.1, 0.5, 0.9, 1]).tolist()
    return result


def _close(read: str, meant: str) -> bool:
    """Equal but for spaces, which recognisers add and drop."""
    return read.replace(" ", "") == meant.replace(" ", "")


def study(
    name: str, source: Path, how: str, folder: Path, certificates: Path | None, most: int,
    count: int, margin: float | None,
) -> dict[str, Any]:  # fmt: skip
    out = folder / f"{name.replace(' ', '-')}-{how}.onnx"
    said = repaired(source, out, how, certificates, margin)
    freed = {int(entry["class"]) for entry in said["freed"]}
    before, after = Recogniser(source, threads=1), Recogniser(out, threads=1)
    labels = before.labels
    result: dict[str, Any] = {
        "model": name, "how": how, "classes": said["classes"], "freed": len(freed),
        "counts": said["counts"], "size": said["size"], "needed": said["needed"],
        "not_told_apart": said.get("low_precision", {}).get("freed_not_told_apart"),
        "seconds": said.get("seconds_in_all"), "fonts": {},
    }  # fmt: skip
    for font in FONTS:
        if not os.path.exists(font):
            continue
        lines = text_lines(labels, freed, font, count)
        text = compare(before, after, [render(line, font) for line in lines], freed, 320)
        right = [
            sum(_close(a, b) for a, b in zip(read, lines, strict=True)) for read in text["read"]
        ]
        rng = np.random.default_rng(1)
        known = [t for t in sorted(freed) if len(labels[t]) == 1 and covers(font, labels[t])]
        shown = sorted(rng.choice(known, size=min(len(known), most), replace=False).tolist())
        able = [t for t in range(len(labels)) if t not in freed and len(labels[t]) == 1
                and not labels[t].isspace() and covers(font, labels[t])]  # fmt: skip
        others = sorted(rng.choice(able, size=min(len(able), most), replace=False).tolist())
        entry: dict[str, Any] = {
            "text": {**text, "lines_right_before": right[0], "lines_right_after": right[1]}
        }
        for kind, some in (("freed", shown), ("others", others)):
            if not some:
                continue
            pictures = [render(labels[t], font) for t in some]
            found = compare(before, after, pictures, freed, 160, some if kind == "freed" else None)
            for when, read in zip(("before", "after"), found["read"], strict=True):
                found[f"right_{when}"] = sum(
                    a == labels[t] for a, t in zip(read, some, strict=True)
                )
            entry[kind] = found
        for part in entry.values():
            del part["read"]
        result["fonts"][Path(font).name] = entry
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/repair"))
    parser.add_argument("--how", nargs="+", default=["bias"], choices=list(WAYS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lines", type=int, default=300, help="lines of random characters a font")
    parser.add_argument("--most", type=int, default=500, help="single characters of a kind a font")
    parser.add_argument("--margin", type=float, help="by how much freed classes lead, in logits")
    parser.add_argument("--certificates", nargs="*", default=[], help="MODEL=FILE: earlier audits")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    known = dict(entry.split("=", 1) for entry in chosen.certificates)
    results = []
    for name in chosen.models:
        source = model_path(*MODELS[name])
        for how in chosen.how:
            certificates = Path(known[name]) if name in known else None
            results.append(
                study(
                    name,
                    source,
                    how,
                    chosen.out,
                    certificates,
                    chosen.most,
                    chosen.lines,
                    chosen.margin,
                )
            )
            said = json.dumps(
                {"uncork": uncork.__version__, "results": results}, ensure_ascii=False, indent=1
            )
            (chosen.out / "repair_ocr.json").write_text(said + "\n", "utf-8")
            print(json.dumps(results[-1], ensure_ascii=False))


if __name__ == "__main__":
    main()
