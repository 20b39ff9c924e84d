//! Hostile text and vocabularies: nothing panics, nothing is slow, nothing is smuggled in.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;
use tokenmill_gguf::{Array, Metadata, StringArray, Value};
use tokenmill_testkit::{Random, cases, json_mutation::mutate_json, text_mutation::mutate_text};
use tokenmill_text::{
    DecodeOptions, EncodeOptions, StopMatcher, StreamDecoder, Tokenizer, TokenizerError, VocabularyFiles,
    template::{ChatTemplate, RenderOptions},
};

use crate::support::{template_words, tokenizer_parts, vocabularies};

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

fn all_models() -> Vec<(&'static str, Tokenizer)> {
    [
        ("gpt-2", vocabularies::byte_level("gpt-2")),
        ("llama-bpe", vocabularies::byte_level("llama-bpe")),
        ("superbpe", vocabularies::byte_level("superbpe")),
        ("llama", vocabularies::sentencepiece()),
        ("t5", vocabularies::unigram()),
        ("bert", vocabularies::wordpiece()),
    ]
    .into_iter()
    .map(|(name, metadata)| (name, Tokenizer::from_gguf(&metadata).unwrap()))
    .collect()
}

#[test]
fn a_long_text_of_anything_encodes_in_time() {
    // Far above the time on a busy machine, and far below that of a quadratic algorithm.
    let limit = Duration::from_secs(10);
    let long_number = "1234567890";
    for (name, tokenizer) in all_models() {
        for part in [
            " ",
            "a",
            "7",
            long_number,
            "日",
            "\u{301}",
            "e\u{301}",
            "👩",
            "\n",
            "the ",
            "<s",
            "▁",
            "th",
        ] {
            let text = part.repeat((1 << 18) / part.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, PLAIN);
            let elapsed = start.elapsed();
            assert!(elapsed < limit, "{name}: {part:?} took {elapsed:?}");
            assert!(
                name == "bert" || name == "t5" || !ids.is_empty(),
                "{name}: {part:?}"
            );
        }
    }
}

#[test]
fn special_tokens_are_text_unless_parsed() {
    for (name, tokenizer) in all_models() {
        let Some(bos) = tokenizer.special_token("<s>") else {
            continue;
        };
        let smuggled = tokenizer.encode("a<s></s><unk>a", PLAIN);
        let specials = smuggled
            .iter()
            .filter(|&&id| tokenizer.token_kind(id).unwrap().is_special())
            .filter(|&&id| Some(id) != tokenizer.unknown());
        assert_eq!(specials.count(), 0, "{name}: {smuggled:?}");
        let parsed = EncodeOptions {
            parse_special: true,
            ..PLAIN
        };
        assert!(tokenizer.encode("a<s>a", parsed).contains(&bos), "{name}");
        let tool = tokenizer.special_token("<tool>").unwrap();
        assert!(tokenizer.encode("a<tool>a", PLAIN).contains(&tool), "{name}");
    }
}

/// Some converters mark the end of texts as a normal token, which no merge makes.
#[test]
fn an_end_mark_that_is_marked_as_normal_is_a_special_token() {
    let mut metadata = Metadata::new();
    let kinds = vocabularies::byte_level("gpt-2")
        .i32_array("tokenizer.ggml.token_type")
        .unwrap()
        .len();
    for (name, value) in vocabularies::byte_level("gpt-2").iter() {
        let value = match (name, value) {
            ("tokenizer.ggml.tokens", Value::Array(Array::String(texts))) => {
                Value::from(texts.iter().chain(["<|endoftext|>"]).collect::<StringArray>())
            }
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))) => {
                Value::from([&kinds[..], &[1]].concat())
            }
            (_, value) => value.clone(),
        };
        metadata.insert(name, value).unwrap();
    }
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let parsed = EncodeOptions {
        parse_special: true,
        ..PLAIN
    };
    assert_eq!(tokenizer.encode("<|endoftext|>", parsed), [kinds as u32]);
    assert!(!tokenizer.encode("<|endoftext|>", PLAIN).contains(&(kinds as u32)));
}

/// Returns the error of the tokenizer file with some of its parts replaced.
fn json_error(parts: &[(&str, serde_json::Value)]) -> String {
    let mut json: serde_json::Value = serde_json::from_str(include_str!("support/tokenizer.json")).unwrap();
    for (name, part) in parts {
        json[name] = part.clone();
    }
    Tokenizer::from_tokenizer_json(json.to_string().as_bytes())
        .unwrap_err()
        .to_string()
}

#[test]
fn parts_that_would_make_a_short_text_huge_are_refused() {
    let replace = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "e".repeat(48)});
    let sequence = |part: serde_json::Value, n| json!({"type": "Sequence", "normalizers": vec![part; n]});
    assert_eq!(
        json_error(&[("normalizer", sequence(replace.clone(), 6))]),
        "tokenizer: its normalizers can make a text 12230590464 times as long, at most 1024 is allowed"
    );
    let pattern = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y".repeat(2000)});
    assert_eq!(
        json_error(&[("normalizer", pattern)]),
        "tokenizer: its normalizers can make a text 2001 times as long, at most 1024 is allowed"
    );
    let prepend = json!({"type": "Prepend", "prepend": "p".repeat(100_000)});
    assert_eq!(
        json_error(&[("normalizer", prepend)]),
        "tokenizer: its normalizers add 100000 bytes to a text, at most 65536 are allowed"
    );
    assert_eq!(
        json_error(&[("normalizer", sequence(json!({"type": "NFC"}), 65))]),
        "tokenizer: it has 65 normalizers, at most 64 are allowed"
    );
    // Splitters call each other, one level of the stack for each.
    let splitters = vec![json!({"type": "Digits", "individual_digits": true}); 100_000];
    assert_eq!(
        json_error(&[(
            "pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": splitters})
        )]),
        "tokenizer: it has 65 pre-tokenizers, at most 64 are allowed"
    );
    let decoder = json!({"type": "Sequence", "decoders": vec![replace; 2]});
    assert_eq!(
        json_error(&[("decoder", decoder)]),
        "tokenizer: its decoders can make a text 2304 times as long, at most 16 is allowed"
    );
    let around = json!({
        "type": "TemplateProcessing",
        "single": vec![json!({"SpecialToken": {"id": "a"}}); 100_000],
        "special_tokens": {"a": {"ids": vec![1; 1000]}},
    });
    assert_eq!(
        json_error(&[("post_processor", around)]),
        "tokenizer: it has 2000 tokens around each text, at most 1024 are allowed"
    );
}

/// Files that keep the structure of a tokenizer, with parts moved, repeated, exchanged and changed.
#[test]
fn mutated_tokenizer_files_are_refused_or_work() {
    let base: serde_json::Value = serde_json::from_str(include_str!("support/tokenizer.json")).unwrap();
    let parts = tokenizer_parts::parts();
    let text = "the e\u{301} 日 \u{fdfa}<s> tool 77\u{2581}".repeat(20);
    let (mut n_refused, mut n_built) = (0, 0);
    for case in cases("mutated tokenizers", 6000) {
        let mut random = Random::named(5, &case.to_string());
        let mut json = base.clone();
        for _ in 0..=random.below(4) {
            mutate_json(&mut json, &parts, &mut |n| random.below(n));
        }
        let Ok(tokenizer) = Tokenizer::from_tokenizer_json(json.to_string().as_bytes()) else {
            n_refused += 1;
            continue;
        };
        n_built += 1;
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let ids = tokenizer.encode(&text, options);
        assert!(
            ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()),
            "{json}"
        );
        tokenizer.decode(&ids, DecodeOptions::default());
    }
    assert!(
        n_refused > (n_refused + n_built) / 6 && n_built > (n_refused + n_built) / 20,
        "{n_refused} refused, {n_built} built"
    );
}

/// Files of a folder that `convert` reads: the keys are a tokenizer, or the files are refused.
#[test]
fn mutated_vocabulary_files_are_refused_or_make_keys() {
    let base: serde_json::Value = serde_json::from_str(include_str!("support/tokenizer.json")).unwrap();
    let parts = tokenizer_parts::parts();
    let (mut n_refused, mut n_made) = (0, 0);
    for case in cases("mutated vocabularies", 2000) {
        let mut random = Random::named(7, &case.to_string());
        let mut json = base.clone();
        for _ in 0..=random.below(4) {
            mutate_json(&mut json, &parts, &mut |n| random.below(n));
        }
        let files = VocabularyFiles {
            tokenizer_config: json.clone(),
            tokenizer_json: Some(json.to_string().into_bytes()),
            n_vocab: 1024,
            pre: (random.below(2) == 0).then(|| "gpt-2".to_owned()),
            ..VocabularyFiles::default()
        };
        match files.metadata() {
            Ok(metadata) => {
                n_made += 1;
                assert_eq!(
                    metadata.string_array("tokenizer.ggml.tokens").unwrap().len(),
                    1024
                );
                let _ = Tokenizer::from_gguf(&metadata);
            }
            Err(_) => n_refused += 1,
        }
    }
    let fewest = (n_refused + n_made) / 40;
    assert!(
        n_refused > fewest && n_made > fewest,
        "{n_refused} refused, {n_made} made"
    );
}

/// Templates with words of their language inserted, repeated and cut.
#[test]
fn mutated_templates_are_refused_or_render_within_limits() {
    let context = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    });
    let (mut n_refused, mut n_rendered) = (0, 0);
    let started = Instant::now();
    for case in cases("mutated templates", 4000) {
        let mut random = Random::named(6, &case.to_string());
        let mut source = template_words::TEMPLATE.to_owned();
        for _ in 0..=random.below(5) {
            mutate_text(&mut source, &template_words::WORDS, &mut |n| random.below(n));
        }
        let rendered = ChatTemplate::new(&source)
            .and_then(|template| template.render(&context, &RenderOptions::default()));
        match rendered {
            Ok(_) => n_rendered += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                n_refused += 1;
            }
        }
    }
    assert!(
        n_refused > (n_refused + n_rendered) / 8 && n_rendered > (n_refused + n_rendered) / 80,
        "{n_refused} refused, {n_rendered} rendered"
    );
    assert!(started.elapsed() < Duration::from_mins(5));
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a7 t<s>h/e日é\\n\u{301}▁👩]{0,60}",
        prop::collection::vec(
            prop_oneof![Just("<s>"), Just("<tool>"), Just("the"), Just(" "), Just("▁")],
            0..12
        )
        .prop_map(|parts| parts.concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn byte_level_text_round_trips(text in texts()) {
        for pre in ["gpt-2", "llama-bpe", "deepseek-v3", "falcon", "tekken", "default"] {
            let tokenizer = Tokenizer::from_gguf(&vocabularies::byte_level(pre)).unwrap();
            let ids = tokenizer.encode(&text, EncodeOptions::default());
            prop_assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()), text.as_str(), "{}", pre);
        }
    }

    #[test]
    fn sentencepiece_text_round_trips(text in texts()) {
        let tokenizer = Tokenizer::from_gguf(&vocabularies::sentencepiece()).unwrap();
        let ids = tokenizer.encode(&text, EncodeOptions::default());
        let decoded = tokenizer.decode(&ids, DecodeOptions::default());
        // The vocabulary has no token for the mark that replaces a space, and a text after a token that is found
        // first gets a space of its own.
        if !text.contains("<tool>") {
            prop_assert_eq!(decoded, text.replace('▁', " "));
        }
    }

    #[test]
    fn streamed_text_is_the_decoded_text(
        ids in prop::collection::vec(0u32..320, 0..40),
        skip_special: bool,
        is_continuation: bool,
    ) {
        let options = DecodeOptions { skip_special, is_continuation };
        for (name, tokenizer) in all_models() {
            let mut bytes = Vec::new();
            for &id in &ids {
                let is_hidden = tokenizer.token_kind(id).is_none_or(|kind| skip_special && kind.is_special());
                if !is_hidden {
                    bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap());
                }
            }
            let strips = matches!(name, "llama" | "t5" | "bert") && !is_continuation;
            let whole = String::from_utf8_lossy(if strips { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes });
            let mut decoder = StreamDecoder::new(&tokenizer, options);
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(decoder.push(id));
                prop_assert!(whole.starts_with(&streamed), "{}", name);
            }
            streamed.push_str(decoder.finish());
            prop_assert_eq!(&streamed, &whole, "{}", name);
            prop_assert_eq!(tokenizer.decode(&ids, options), whole, "{}", name);
        }
    }

    #[test]
    fn stop_strings_end_the_text_and_never_show(
        text in "[abc]{0,30}",
        stops in prop::collection::vec("[abc]{0,4}", 0..4),
        cuts in prop::collection::vec(0usize..31, 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        // The naive twin: the first end of any stop string, and of those that end there the longest.
        let expected = (0..=text.len()).find_map(|end| {
            let ending = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(*stop));
            ending.min_by_key(|(idx, stop)| (std::cmp::Reverse(stop.len()), *idx)).map(|(idx, stop)| (end - stop.len(), idx))
        });
        let mut matcher = StopMatcher::new(&stops);
        let mut shown = String::new();
        for pair in cuts.windows(2) {
            shown.push_str(&matcher.push(&text[pair[0]..pair[1]]).text);
            let seen = &text[..pair[1]];
            if matcher.stopped_by().is_none() {
                // Nothing is held back that cannot become a stop string.
                let held = &seen[shown.len()..];
                let can_stop = stops.iter().any(|stop| stop.len() > held.len() && stop.starts_with(held));
                prop_assert!(held.is_empty() || can_stop, "{:?} held back", held);
            }
        }
        shown.push_str(&matcher.finish());
        let shown_end = expected.map_or(text.len(), |(end, _)| end);
        prop_assert_eq!(&shown, &text[..shown_end]);
        let stop = expected.map(|(_, idx)| &stops[idx]);
        prop_assert_eq!(matcher.stopped_by().map(|found| &stops[found]), stop);
    }

    #[test]
    fn random_metadata_is_refused_or_works(
        base in 0usize..4,
        edits in prop::collection::vec((0usize..24, 0usize..8, any::<u32>(), ".{0,6}"), 1..6),
        text in texts(),
    ) {
        let base = [
            vocabularies::byte_level("llama-bpe"),
            vocabularies::sentencepiece(),
            vocabularies::unigram(),
            vocabularies::wordpiece(),
        ][base].clone();
        let metadata = edits.iter().fold(base, |metadata, edit| edited(&metadata, edit));
        if let Ok(tokenizer) = Tokenizer::from_gguf(&metadata) {
            for parse_special in [false, true] {
                let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special });
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
                tokenizer.decode(&ids, DecodeOptions::default());
            }
            tokenizer.decode(&[0, 1, u32::MAX, tokenizer.n_vocab() as u32], DecodeOptions::default());
        }
    }

    #[test]
    fn random_json_is_refused_or_works(cut in 0usize..2000, insert in "[\\[\\]{}\",:0-9a-z]{0,4}", text in texts()) {
        let json = include_str!("support/tokenizer.json");
        let cut = (0..=cut.min(json.len())).rev().find(|&at| json.is_char_boundary(at)).unwrap();
        let skip = json[cut..].chars().next().map_or(0, char::len_utf8);
        let mutated = format!("{}{insert}{}", &json[..cut], &json[cut + skip..]);
        if let Ok(tokenizer) = Tokenizer::from_tokenizer_json(mutated.as_bytes()) {
            let ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: true });
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
            tokenizer.decode(&ids, DecodeOptions::default());
        }
    }
}

/// Returns the metadata with one entry dropped, replaced, shortened, lengthened or reordered.
fn edited(metadata: &Metadata, &(key, how, number, ref word): &(usize, usize, u32, String)) -> Metadata {
    let keys = metadata.len();
    let mut out = Metadata::new();
    for (idx, (name, value)) in metadata.iter().enumerate() {
        if idx != key % keys {
            out.insert(name, value.clone()).unwrap();
            continue;
        }
        let value = match (how, value) {
            (0, _) => continue,
            (1, _) => Value::from(number),
            (2, _) => Value::from(word.as_str()),
            (_, Value::U32(_)) => Value::from(number % 400),
            (3, Value::Array(Array::String(texts))) => Value::from(
                texts
                    .iter()
                    .take(number as usize % (texts.len() + 1))
                    .collect::<StringArray>(),
            ),
            (4, Value::Array(Array::String(texts))) => {
                Value::from(texts.iter().chain([word.as_str()]).collect::<StringArray>())
            }
            (_, Value::Array(Array::String(texts))) => {
                let at = number as usize % texts.len().max(1);
                let replaced = texts
                    .iter()
                    .enumerate()
                    .map(|(idx, text)| if idx == at { word.as_str() } else { text });
                Value::from(replaced.collect::<StringArray>())
            }
            (3, Value::Array(Array::I32(numbers))) => {
                Value::from(numbers[..number as usize % (numbers.len() + 1)].to_vec())
            }
            (_, Value::Array(Array::I32(numbers))) => {
                let mut numbers = numbers.clone();
                if let Some(at) = (number as usize).checked_rem(numbers.len()) {
                    numbers[at] = how as i32;
                }
                Value::from(numbers)
            }
            (_, Value::Array(Array::F32(numbers))) => {
                let mut numbers = numbers.clone();
                if let Some(at) = (number as usize).checked_rem(numbers.len()) {
                    numbers[at] = f32::from_bits(number);
                }
                Value::from(numbers)
            }
            (_, value) => value.clone(),
        };
        out.insert(name, value).unwrap();
    }
    if how == 7 {
        let flag = ["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"][number as usize % 2];
        let _ = out.insert(flag, true);
        let _ = out.insert("tokenizer.ggml.precompiled_charsmap", word.as_bytes().to_vec());
    }
    out
}

/// Returns the error of a byte-level vocabulary with one entry replaced.
fn error_with(key: &str, value: impl Into<Value>) -> String {
    let mut metadata = Metadata::new();
    for (name, old) in vocabularies::byte_level("gpt-2").iter() {
        if name != key {
            metadata.insert(name, old.clone()).unwrap();
        }
    }
    metadata.insert(key, value).unwrap();
    Tokenizer::from_gguf(&metadata).unwrap_err().to_string()
}

#[test]
fn damaged_vocabularies_are_refused_by_name() {
    assert_eq!(
        Tokenizer::from_gguf(&Metadata::new()).unwrap_err().to_string(),
        "metadata key `tokenizer.ggml.model` is missing"
    );
    assert_eq!(
        error_with("tokenizer.ggml.model", "rwkv"),
        "tokenizer model `rwkv` is not supported; supported are gpt2, llama, bert, t5, gemma4 and whitespace"
    );
    assert!(error_with("tokenizer.ggml.pre", "new-one").starts_with("pre-tokenizer `new-one` is unknown"));
    assert!(
        error_with("tokenizer.ggml.token_type", vec![1_i32])
            .starts_with("`tokenizer.ggml.token_type` has 1 entries")
    );
    assert_eq!(
        error_with("tokenizer.ggml.merges", StringArray::from_iter(["a a", "alone"])),
        "merge 1, `alone`, is not two tokens with a space between"
    );
    let twice = StringArray::from_iter(["a", "b", "a"]);
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "llama").unwrap();
    metadata.insert("tokenizer.ggml.tokens", twice).unwrap();
    let error = Tokenizer::from_gguf(&metadata).unwrap_err();
    assert!(
        matches!(
            error,
            TokenizerError::DuplicateToken {
                first: 0,
                second: 2,
                ..
            }
        ),
        "{error}"
    );
}
