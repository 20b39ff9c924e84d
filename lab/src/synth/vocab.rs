//! A byte-level BPE vocabulary of any size, generated without data.
//!
//! Loading and tokenizing cost as much as with a real vocabulary: the tokens are the 256 bytes, then the likeliest
//! letter sequences of English by letter frequency, with and without a leading space, and then the control tokens of the
//! model family. Invariant: every token that is not a byte or a control token has exactly one merge, and merges come in
//! the order of their tokens, as a trainer writes them.

use std::cmp::Reverse;

use anyhow::ensure;
use tokenmill_gguf::{Metadata, StringArray};

use super::preset::Architecture;

/// Letters with how often each occurs in a million letters of English.
#[rustfmt::skip]
const LETTERS: [(char, u64); 26] = [
    ('e', 120_200), ('t', 91_000), ('a', 81_200), ('o', 76_800), ('i', 73_100), ('n', 69_500), ('s', 62_800), ('r', 60_200), ('h', 59_200),
    ('d', 43_200), ('l', 39_800), ('u', 28_800), ('c', 27_100), ('m', 26_100), ('f', 23_000), ('y', 21_100), ('w', 20_900), ('g', 20_300),
    ('p', 18_200), ('b', 14_900), ('v', 11_100), ('k', 6_900), ('x', 1_700), ('q', 1_100), ('j', 1_000), ('z', 700),
];

/// The character for a space in byte-level BPE.
const SPACE: &str = "\u{120}";
/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// Properties of a model family's vocabularies.
struct Family {
    pre: &'static str,
    /// The control tokens at the end of the vocabulary.
    control: &'static [&'static str],
    /// Number of ids of the control tokens and the padding after them in a full-size vocabulary.
    n_reserved: u32,
    bos: Option<&'static str>,
    eos: &'static str,
    eot: Option<&'static str>,
    padding: Option<&'static str>,
    chat_template: &'static str,
}

const LLAMA: Family = Family {
    pre: "llama-bpe",
    control: &[
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ],
    n_reserved: 256,
    bos: Some("<|begin_of_text|>"),
    eos: "<|end_of_text|>",
    eot: Some("<|eot_id|>"),
    padding: None,
    chat_template: "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}\
        <|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
        <|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
};

const QWEN: Family = Family {
    pre: "qwen2",
    control: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    n_reserved: 293,
    bos: None,
    eos: "<|im_end|>",
    eot: None,
    padding: Some("<|endoftext|>"),
    chat_template: "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
};

/// A token made by merging two others.
struct Merged {
    left: String,
    right: String,
}

/// Inserts everything under `tokenizer.` for a vocabulary of `n_vocab` tokens.
pub(super) fn insert(
    metadata: &mut Metadata,
    architecture: Architecture,
    n_vocab: u32,
) -> anyhow::Result<()> {
    let family = match architecture {
        Architecture::Llama => LLAMA,
        // The cost of a vocabulary depends only on its size: other families get this one's.
        _ => QWEN,
    };
    let n_vocab = n_vocab as usize;
    let n_reserved = (family.n_reserved as usize)
        .min(n_vocab / 4)
        .max(family.control.len());
    ensure!(
        n_vocab >= 256 + n_reserved,
        "a vocabulary of {n_vocab} tokens is too small"
    );
    let n_merged = n_vocab - 256 - n_reserved;
    let merged = merged_tokens(n_merged);
    ensure!(
        merged.len() == n_merged,
        "no {n_merged} different tokens can be made"
    );

    let mut tokens: StringArray = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let mut merges = StringArray::new();
    for Merged { left, right } in &merged {
        tokens.push(&format!("{left}{right}"));
        merges.push(&format!("{left} {right}"));
    }
    let first_reserved = tokens.len();
    let mut token_types = vec![NORMAL; first_reserved];
    for token in family.control {
        tokens.push(token);
        token_types.push(CONTROL);
    }
    for index in 0..n_reserved - family.control.len() {
        tokens.push(&format!("[PAD{index}]"));
        token_types.push(UNUSED);
    }

    let id_of = |token: &str| {
        let position = family.control.iter().position(|control| *control == token);
        (first_reserved + position.expect("a control token of the family")) as u32
    };
    metadata.insert("tokenizer.ggml.model", "gpt2")?;
    metadata.insert("tokenizer.ggml.pre", family.pre)?;
    metadata.insert("tokenizer.ggml.tokens", tokens)?;
    metadata.insert("tokenizer.ggml.token_type", token_types)?;
    metadata.insert("tokenizer.ggml.merges", merges)?;
    for (name, token) in [
        ("bos", family.bos),
        ("eos", Some(family.eos)),
        ("eot", family.eot),
        ("padding", family.padding),
    ] {
        if let Some(token) = token {
            metadata.insert(format!("tokenizer.ggml.{name}_token_id"), id_of(token))?;
        }
    }
    metadata.insert("tokenizer.ggml.add_bos_token", family.bos.is_some())?;
    metadata.insert("tokenizer.chat_template", family.chat_template)?;
    Ok(())
}

/// Returns the character that byte-level BPE writes for a byte: itself if it is printable, otherwise one from U+0100 on.
///
/// Source: `bytes_to_unicode` of GPT-2's encoder.
fn byte_char(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_visible(byte) {
        return byte.into();
    }
    let n_hidden_before = (0..byte).filter(|&before| !is_visible(before)).count();
    char::from_u32(0x100 + n_hidden_before as u32).expect("a code point below the surrogates")
}

/// Returns the first `n` merges: ever longer words, likelier ones first, each alone and after a space.
fn merged_tokens(n: usize) -> Vec<Merged> {
    let mut merged = Vec::with_capacity(n);
    let mut words: Vec<(String, u64)> = LETTERS
        .iter()
        .map(|&(letter, count)| (letter.to_string(), count))
        .collect();
    let after_space = |word: &str| Merged {
        left: SPACE.to_owned(),
        right: word.to_owned(),
    };
    merged.extend(words.iter().map(|(word, _)| after_space(word)));
    // Four letters with all of the alphabet make nearly a million tokens; no vocabulary is larger.
    for _ in 2..=4 {
        if merged.len() >= n {
            break;
        }
        let mut longer: Vec<(String, &str, char, u64)> = words
            .iter()
            .flat_map(|(word, count)| {
                LETTERS.iter().map(move |&(letter, letter_count)| {
                    // Counts stay in millionths, rounded, so that the order is the same everywhere.
                    (
                        format!("{word}{letter}"),
                        word.as_str(),
                        letter,
                        count * letter_count / 1000,
                    )
                })
            })
            .collect();
        longer.sort_by(|a, b| (Reverse(a.3), &a.0).cmp(&(Reverse(b.3), &b.0)));
        for (word, left, right, _) in &longer {
            merged.push(Merged {
                left: (*left).to_owned(),
                right: right.to_string(),
            });
            merged.push(after_space(word));
        }
        words = longer
            .into_iter()
            .map(|(word, _, _, count)| (word, count))
            .collect();
    }
    merged.truncate(n);
    merged
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn vocabularies_have_distinct_tokens_and_merges_of_earlier_ones() {
        for (architecture, n_vocab) in [(Architecture::Llama, 128_256), (Architecture::Qwen2, 151_936)] {
            let mut metadata = Metadata::new();
            insert(&mut metadata, architecture, n_vocab).unwrap();
            let tokens = metadata.string_array("tokenizer.ggml.tokens").unwrap();
            assert_eq!(tokens.len(), n_vocab as usize);
            assert_eq!(
                metadata.i32_array("tokenizer.ggml.token_type").unwrap().len(),
                tokens.len()
            );
            let mut known = HashSet::new();
            assert!(
                tokens.iter().all(|token| known.insert(token)),
                "a token occurs twice"
            );

            let merges = metadata.string_array("tokenizer.ggml.merges").unwrap();
            let mut before: HashSet<&str> = tokens.iter().take(256).collect();
            for (merge, token) in merges.iter().zip(tokens.iter().skip(256)) {
                let (left, right) = merge.split_once(' ').unwrap();
                assert!(before.contains(left) && before.contains(right), "{merge}");
                assert_eq!(format!("{left}{right}"), token);
                before.insert(token);
            }
        }
    }

    #[test]
    fn byte_characters_are_those_of_byte_level_bpe() {
        assert_eq!(byte_char(b' '), '\u{120}');
        assert_eq!(byte_char(b'\n'), '\u{10a}');
        assert_eq!(byte_char(b'A'), 'A');
        assert_eq!(byte_char(0xad), '\u{143}');
        let distinct: HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn special_ids_point_at_control_tokens() {
        let mut metadata = Metadata::new();
        insert(&mut metadata, Architecture::Llama, 128_256).unwrap();
        let tokens = metadata.string_array("tokenizer.ggml.tokens").unwrap();
        assert_eq!(metadata.u32("tokenizer.ggml.bos_token_id").unwrap(), 128_000);
        assert_eq!(tokens.get(128_009), Some("<|eot_id|>"));
    }
}
