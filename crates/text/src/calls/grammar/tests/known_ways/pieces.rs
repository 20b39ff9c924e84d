//! Cuts scripts into random tokens, and builds a vocabulary of them. It knows nothing of calls.

use tokenmill_gguf::{Metadata, StringArray};

use super::Dice;
use crate::{Tokenizer, calls::ReplyParser};

/// Lists the marks of a parser that are single tokens in vocabularies.
pub(super) fn control_marks(parser: &ReplyParser) -> Vec<String> {
    let is_token = |mark: &&str| {
        let inner = mark.strip_prefix('<').and_then(|mark| mark.strip_suffix('>'));
        let inner = inner.or_else(|| mark.strip_prefix('[').and_then(|mark| mark.strip_suffix(']')));
        inner.is_some_and(|inner| !inner.is_empty() && !inner.contains(['<', '>', '[', ']', ' ', '"', '=']))
    };
    let mut marks: Vec<String> = parser
        .marks()
        .into_iter()
        .filter(is_token)
        .map(str::to_owned)
        .collect();
    marks.sort();
    marks.dedup();
    marks
}

/// Builds a vocabulary of all bytes, the end token, control tokens and words.
pub(super) fn tokenizer(controls: &[String], words: &[String]) -> Tokenizer {
    let mut metadata = Metadata::new();
    let tokens = (0..256)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["<end>".to_owned(), "<unk>".to_owned()])
        .chain(controls.iter().cloned())
        .chain(words.iter().map(|word| word.replace(' ', "▁")));
    let mut kinds = vec![6; 256];
    kinds.extend([3, 2]);
    kinds.extend(controls.iter().map(|_| 3));
    kinds.extend(words.iter().map(|_| 1));
    let n_tokens = kinds.len();
    let set = || -> Result<(), tokenmill_gguf::GgufError> {
        metadata.insert("tokenizer.ggml.model", "llama")?;
        metadata.insert("tokenizer.ggml.tokens", tokens.collect::<StringArray>())?;
        metadata.insert("tokenizer.ggml.scores", vec![0f32; n_tokens])?;
        metadata.insert("tokenizer.ggml.token_type", kinds)?;
        metadata.insert("tokenizer.ggml.eos_token_id", 256u32)?;
        metadata.insert("tokenizer.ggml.unknown_token_id", 257u32)?;
        Ok(())
    };
    set().unwrap();
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// Cuts a text into random pieces of at most `longest` characters; control tokens stay whole.
pub(super) fn cut<'t>(text: &'t str, controls: &[String], longest: usize, dice: &mut Dice) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let control = controls
            .iter()
            .filter(|control| rest.starts_with(control.as_str()))
            .max_by_key(|control| control.len());
        let n_bytes = if let Some(control) = control {
            control.len()
        } else {
            let n_chars = 1 + dice.roll(longest);
            let mut ends = rest
                .char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .skip(1)
                .take(n_chars);
            // A piece ends where a control token begins.
            let mut end = ends.next().unwrap_or(rest.len());
            for next in ends {
                if controls
                    .iter()
                    .any(|control| rest[end..].starts_with(control.as_str()))
                {
                    break;
                }
                end = next;
            }
            end
        };
        pieces.push(&rest[..n_bytes]);
        rest = &rest[n_bytes..];
    }
    pieces
}
