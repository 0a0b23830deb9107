//! Tests of cuts: at every cut of texts drawn from difficult parts, both sides have the tokens of the whole text.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;

/// The expression of GPT-4 (cl100k) and Llama 3.
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of Qwen 2.
const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of GPT-4o (o200k).
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Parts of texts at which the steps of tokenizers differ.
const PARTS: [&str; 42] = [
    " ",
    " ",
    " ",
    "\n",
    "\r\n",
    "\n\n",
    "  ",
    "   ",
    "\t",
    "\u{a0}",
    "\u{3000}",
    ".",
    "...",
    "'s",
    "'",
    "n't",
    "a",
    "the",
    "Word",
    "of",
    "été",
    "e\u{301}",
    "ﬁ",
    "1",
    "234",
    "½",
    "天",
    "地",
    "。",
    "각",
    "가\u{11a8}",
    "👩‍👩‍👧",
    "▁",
    "_",
    "(",
    "/",
    "<new>",
    "<|end|>",
    "<|end|>\n",
    "New York",
    "\u{0}",
    "İ",
];

/// Returns a `tokenizer.json` with these steps and a model that reveals the pieces: each piece is merged as far as pairs of
/// its characters are words of the vocabulary.
fn tokenizer(normalizer: Value, pre_tokenizer: Value, added: Value) -> Tokenizer {
    // Bytes as GPT-2 writes them, characters of the parts, and every pair of them, merged in order.
    let mut letters: Vec<char> = (0..=0x180_u32)
        .chain(0x2581..=0x2581)
        .filter_map(char::from_u32)
        .collect();
    letters.extend(PARTS.concat().chars());
    letters.sort_unstable();
    letters.dedup();
    let mut words: Vec<String> = letters.iter().map(char::to_string).collect();
    words.insert(0, "<unk>".to_owned());
    let ascii = letters.iter().filter(|letter| {
        letter.is_ascii_graphic() || ['Ġ', 'Ċ', 'č', '▁', ' ', '\n', '。', '天'].contains(letter)
    });
    let ascii: Vec<char> = ascii.copied().collect();
    let mut merges = Vec::new();
    for first in &ascii {
        for second in &ascii {
            merges.push(json!([first.to_string(), second.to_string()]));
            words.push(format!("{first}{second}"));
        }
    }
    let vocabulary: serde_json::Map<String, Value> = words
        .into_iter()
        .enumerate()
        .map(|(number, word)| (word, json!(number)))
        .collect();
    let known = vocabulary.len();
    let mut added_tokens = Vec::new();
    for (number, token) in added.as_array().unwrap().iter().enumerate() {
        let mut token = token.clone();
        token["id"] = json!(known + number);
        added_tokens.push(token);
    }
    let all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges },
    });
    Tokenizer::from_bytes(all.to_string()).unwrap()
}

fn added(content: &str, normalized: bool, strips: bool, single_word: bool) -> Value {
    json!({ "content": content, "single_word": single_word, "lstrip": strips, "rstrip": strips,
        "normalized": normalized, "special": !normalized })
}

fn byte_level(is_splitting: bool, adds_space: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": true, "use_regex": is_splitting })
}

fn split_by(expression: &str, behavior: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": behavior, "invert": false })
}

fn in_order(steps: &[Value]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}

fn metaspace(scheme: &str, is_splitting: bool) -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": is_splitting })
}

fn form(name: &str) -> Value {
    json!({ "type": name })
}

/// Returns added tokens that strip spaces, contain some, are whole words, or start one another.
fn difficult_added() -> Value {
    json!([
        added("<|end|>\n", false, false, false),
        added("<|end|>", false, false, false),
        added("<new>", false, true, false),
        added("New York", true, true, false),
        added("of", true, false, true),
        added("  ", true, false, false),
    ])
}

/// Returns the normalizers of BERT and T5, and one of three steps.
fn normalizers() -> [Value; 3] {
    let bert = json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true });
    let t5 = json!({ "type": "Sequence", "normalizers": [form("NFKC"),
        { "type": "Strip", "strip_left": false, "strip_right": true },
        { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "▁" }] });
    let lower = json!({ "type": "Sequence", "normalizers": [form("NFD"), form("Lowercase"), form("StripAccents")] });
    [bert, t5, lower]
}

/// Returns families of tokenizers by name, all with cuts.
fn families() -> Vec<(&'static str, Tokenizer)> {
    let none = json!([]);
    let many = difficult_added();
    let [bert, t5, lower] = normalizers();
    let gpt4 = |expression| in_order(&[split_by(expression, "Isolated"), byte_level(false, false)]);
    let null = Value::Null;
    let cases = [
        ("gpt2", null.clone(), byte_level(true, false), &none),
        ("gpt2 added", null.clone(), byte_level(true, false), &many),
        ("gpt2 space", null.clone(), byte_level(true, true), &none),
        ("gpt4", null.clone(), gpt4(GPT4), &none),
        ("llama3 added", null.clone(), gpt4(GPT4), &many),
        ("qwen", form("NFC"), gpt4(QWEN), &many),
        ("gpt4o", null.clone(), gpt4(GPT4O), &many),
        ("bert", bert, form("BertPreTokenizer"), &many),
        ("lower", lower, form("Whitespace"), &many),
        ("t5", t5, metaspace("always", true), &none),
        (
            "metaspace first",
            form("NFKC"),
            metaspace("first", true),
            &many,
        ),
        (
            "metaspace never",
            form("NFKD"),
            metaspace("never", true),
            &many,
        ),
        (
            "xlm",
            form("Nmt"),
            in_order(&[form("WhitespaceSplit"), metaspace("first", true)]),
            &many,
        ),
        (
            "digits",
            null.clone(),
            in_order(&[
                json!({ "type": "Digits", "individual_digits": false }),
                byte_level(true, false),
            ]),
            &many,
        ),
        (
            "punctuation",
            null.clone(),
            in_order(&[
                json!({ "type": "Punctuation", "behavior": "MergedWithPrevious" }),
                split_by(r"\s+", "MergedWithNext"),
            ]),
            &many,
        ),
        (
            "contiguous",
            null.clone(),
            in_order(&[
                json!({ "type": "Punctuation", "behavior": "Contiguous" }),
                split_by(r"[\r\n]", "Removed"),
            ]),
            &many,
        ),
        ("numbers", null, split_by(r"\p{N}{1,3}", "Isolated"), &many),
    ];
    cases
        .into_iter()
        .map(|(name, normalizer, pre, added)| (name, tokenizer(normalizer, pre, added.clone())))
        .collect()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode_fast(text, false)
        .unwrap()
        .get_ids()
        .to_vec()
}

/// Checks every cut of a text, and returns their number.
fn check_cuts(name: &str, tokenizer: &Tokenizer, rule: &CutRule, text: &str) -> usize {
    let whole = ids(tokenizer, text);
    let mut count = 0;
    for is_end in [false, true] {
        let mut pairs = CharacterPairs::new();
        for cut in rule.cuts(text, is_end, &mut pairs) {
            let (before, after) = text.split_at(cut);
            let parts = [ids(tokenizer, before), ids(tokenizer, after)].concat();
            assert_eq!(parts, whole, "{name}: {before:?} | {after:?}");
            count += 1;
        }
    }
    count
}

#[test]
fn cuts_of_random_texts_do_not_change_tokens() {
    let families = families();
    let rules: Vec<CutRule> = families
        .iter()
        .map(|(name, tokenizer)| CutRule::new(tokenizer).unwrap_or_else(|| panic!("{name}")))
        .collect();
    let counts: Vec<_> = families.iter().map(|_| std::cell::Cell::new(0)).collect();
    let text = proptest::collection::vec(select(&PARTS[..]), 1..60);
    let cases = ProptestConfig::with_cases(150);
    proptest!(cases, |(parts in text)| {
        let text = parts.concat();
        for (((name, tokenizer), rule), count) in families.iter().zip(&rules).zip(&counts) {
            count.set(count.get() + check_cuts(name, tokenizer, rule, &text));
        }
    });
    for ((name, _), count) in families.iter().zip(&counts) {
        assert!(count.get() > 20, "{name} has {} cuts", count.get());
    }
}

#[test]
fn ordinary_texts_have_cuts_near_their_end() {
    let line = "He said: \"It's 1,234 cats.\"\n天地玄黄。宇宙洪荒。\n";
    let text = line.repeat(40);
    for (name, tokenizer) in families() {
        let rule = CutRule::new(&tokenizer).unwrap();
        let mut pairs = CharacterPairs::new();
        let last = rule.cuts(&text, false, &mut pairs).next();
        let is_near = last.is_some_and(|last| last + 2 * line.len() > text.len());
        assert!(is_near, "{name}: {last:?} of {}", text.len());
        assert!(
            check_cuts(name, &tokenizer, &rule, &line.repeat(3)) > 10,
            "{name}"
        );
    }
}

#[test]
fn llama3_keeps_punctuation_and_line_breaks_together() {
    let pre = in_order(&[split_by(GPT4, "Isolated"), byte_level(false, false)]);
    let tokenizer = tokenizer(Value::Null, pre, json!([]));
    let rule = CutRule::new(&tokenizer).unwrap();
    let mut pairs = CharacterPairs::new();
    let cuts: Vec<usize> = rule.cuts("one two.\nsix ten", true, &mut pairs).collect();
    // Before a single space and after a word, but neither side of the line break.
    assert_eq!(cuts, [12, 7, 3]);
}

#[test]
fn tokenizers_whose_steps_see_across_any_position_have_no_cuts() {
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    for (normalizer, pre) in [
        (Value::Null, Value::Null),
        (prepend, metaspace("never", true)),
        (Value::Null, metaspace("first", false)),
        (Value::Null, byte_level(false, false)),
        (Value::Null, form("UnicodeScripts")),
        (Value::Null, split_by(r"(?<=a)b", "Isolated")),
        (Value::Null, split_by(r"\bword\b", "Isolated")),
        (Value::Null, split_by(r"a$", "Isolated")),
    ] {
        let tokenizer = tokenizer(normalizer.clone(), pre.clone(), json!([]));
        assert!(CutRule::new(&tokenizer).is_none(), "{normalizer} {pre}");
    }
}
