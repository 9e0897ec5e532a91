"""What makes a page like what it should be: whatever was there, and without replacing what stays."""

from __future__ import annotations

import random

from tests.dashboard.site import Eyes, House

TRY = """async ([path, cases]) => {
    const { morph } = await import(path);
    const wrong = [];
    for (const [before, after] of cases) {
        const region = document.createElement("div");
        region.innerHTML = before;
        const known = new Map([...region.querySelectorAll("[data-key]")].map((one) => [one.dataset.key, one]));
        const wanted = document.createElement("template");
        wanted.innerHTML = after;
        const expected = wanted.innerHTML.trim();
        morph(region, wanted.content);
        for (const one of region.querySelectorAll(".fresh")) {
            one.classList.remove("fresh");
            if (!one.className) one.removeAttribute("class");
        }
        if (region.innerHTML.trim() !== expected) wrong.push([before, after, region.innerHTML]);
        for (const one of region.querySelectorAll(":scope > [data-key]")) {
            const old = known.get(one.dataset.key);
            if (old && old.parentNode === region && old.localName === one.localName && old !== one)
                wrong.push([before, after, "replaced " + one.dataset.key]);
        }
    }
    return wrong;
}"""


def tree(chance: random.Random, keys: list[str], depth: int = 0) -> str:
    parts: list[str] = []
    for _ in range(chance.randint(0, 4)):
        kind = chance.choice(["text", "blank", "plain", "plain", "keyed", "keyed"])
        if kind == "text":
            parts.append(f"t{chance.randint(0, 3)}" if not parts or parts[-1].endswith(">") else "")
        elif kind == "blank":
            parts.append("\n" if parts and parts[-1].endswith(">") else "")
        else:
            name = chance.choice(["p", "b"]) if depth else chance.choice(["div", "section"])
            given = f' title="{chance.randint(0, 2)}"' if chance.random() < 0.4 else ""
            if kind == "keyed" and keys:
                given = f' data-key="{keys.pop()}"{given}'
            inside = tree(chance, keys, depth + 1) if depth < 2 and name != "p" else f"x{chance.randint(0, 2)}"
            parts.append(f"<{name}{given}>{inside}</{name}>")
    return "".join(parts)


def page_part(chance: random.Random) -> str:
    keys = [f"k{number}" for number in range(6)]
    chance.shuffle(keys)
    return tree(chance, keys)


def test_anything_becomes_anything_and_what_has_a_key_is_never_replaced(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui")
    path = page.eval_on_selector("script[type=module]", "one => one.src").replace("main.js", "morph.js")
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    cases = [[page_part(chance), page_part(chance)] for _ in range(2_000)]
    assert page.evaluate(TRY, [path, cases]) == [], f"seed {seed}"
