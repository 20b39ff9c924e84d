//! Small vocabularies of every model, made in memory.

use tokenmill_gguf::{Metadata, StringArray};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn metadata(model: &str, pre: &str, tokens: &[(String, i32)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", model).unwrap();
    metadata.insert("tokenizer.ggml.pre", pre).unwrap();
    let texts: StringArray = tokens.iter().map(|(text, _)| text).collect();
    let kinds: Vec<i32> = tokens.iter().map(|&(_, kind)| kind).collect();
    metadata.insert("tokenizer.ggml.tokens", texts).unwrap();
    metadata.insert("tokenizer.ggml.token_type", kinds).unwrap();
    metadata
}

/// GPT-2's stand-in for a byte.
fn stand_in(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_itself(byte) {
        return byte as char;
    }
    let n_before = (0..byte).filter(|&other| !is_itself(other)).count() as u32;
    char::from_u32(256 + n_before).unwrap()
}

/// Byte-level BPE with a few merges, among them long runs of one letter, of spaces and of parts of characters.
pub(crate) fn byte_level(pre: &str) -> Metadata {
    let mut tokens: Vec<(String, i32)> = (0..=255)
        .map(|byte| (stand_in(byte).to_string(), NORMAL))
        .collect();
    let mut merges = Vec::new();
    let mut merge = |left: &str, right: &str| {
        merges.push(format!("{left} {right}"));
        tokens.push((format!("{left}{right}"), NORMAL));
    };
    for unit in ["a", "Ġ", "7"] {
        let mut run = unit.to_owned();
        for _ in 0..5 {
            merge(&run, &run);
            run = run.repeat(2);
        }
    }
    for (left, right) in [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("æ", "Ĺ"),
        ("æĹ", "¥"),
        ("<", "s"),
        ("<s", ">x"),
    ]
    .into_iter()
    .take(6)
    {
        merge(left, right);
    }
    tokens.push(("<s>".into(), CONTROL));
    tokens.push(("</s>".into(), CONTROL));
    tokens.push(("<tool>".into(), USER_DEFINED));
    let mut metadata = metadata("gpt2", pre, &tokens);
    let merges: StringArray = merges.iter().collect();
    metadata.insert("tokenizer.ggml.merges", merges).unwrap();
    metadata
        .insert("tokenizer.ggml.bos_token_id", tokens.len() as u32 - 3)
        .unwrap();
    metadata
        .insert("tokenizer.ggml.eos_token_id", tokens.len() as u32 - 2)
        .unwrap();
    metadata
}

/// Tokens that SentencePiece models share: specials, bytes, a few pieces.
fn pieces() -> Vec<(String, i32)> {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN),
        ("<s>".to_owned(), CONTROL),
        ("</s>".to_owned(), CONTROL),
    ];
    tokens.extend((0..=255).map(|byte: u8| (format!("<0x{byte:02X}>"), BYTE)));
    let pieces = [
        "▁",
        "▁▁",
        "▁▁▁▁",
        "t",
        "h",
        "e",
        "th",
        "the",
        "▁the",
        "a",
        "aa",
        "aaaa",
        "日",
        "é",
        "<",
        "s",
        "<s",
        "7",
        "77",
        "▁a",
    ];
    tokens.extend(pieces.map(|piece| (piece.to_owned(), NORMAL)));
    tokens.push(("<tool>".to_owned(), USER_DEFINED));
    tokens
}

fn with_scores(model: &str) -> Metadata {
    let tokens = pieces();
    let mut metadata = metadata(model, "default", &tokens);
    let scores: Vec<f32> = tokens
        .iter()
        .map(|(text, _)| -20.0 + text.chars().count() as f32)
        .collect();
    metadata.insert("tokenizer.ggml.scores", scores).unwrap();
    metadata.insert("tokenizer.ggml.unknown_token_id", 0_u32).unwrap();
    metadata
}

/// SentencePiece's BPE.
pub(crate) fn sentencepiece() -> Metadata {
    with_scores("llama")
}

/// Returns a unigram model.
pub(crate) fn unigram() -> Metadata {
    let mut metadata = with_scores("t5");
    metadata.insert("tokenizer.ggml.eos_token_id", 2_u32).unwrap();
    metadata.insert("tokenizer.ggml.padding_token_id", 1_u32).unwrap();
    metadata.insert("tokenizer.ggml.add_space_prefix", true).unwrap();
    metadata
}

/// WordPiece.
pub(crate) fn wordpiece() -> Metadata {
    let mut tokens: Vec<(String, i32)> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        .map(|text| (text.to_owned(), CONTROL))
        .to_vec();
    tokens.extend(
        ["▁a", "a", "▁the", "th", "▁7", "7", "▁日", "▁.", "▁'"].map(|text| (text.to_owned(), NORMAL)),
    );
    let mut metadata = metadata("bert", "jina", &tokens);
    for (key, id) in [("unknown", 1_u32), ("cls", 2), ("seperator", 3), ("padding", 0)] {
        metadata
            .insert(format!("tokenizer.ggml.{key}_token_id"), id)
            .unwrap();
    }
    metadata
}
