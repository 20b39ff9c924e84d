//! Prompts for the text between a beginning and an end, for models trained for it.
//!
//! Three APIs have such requests. Invariant: the marks are tokens of the vocabulary; their spelling in the
//! texts is text.

use tokenmill_text::{EncodeOptions, Tokenizer};

use crate::{ApiError, dialects::llama_cpp::ExtraText};

/// Marks before the beginning, before the end, and before the middle, of one family of models each.
///
/// Source: llama.cpp `src/llama-vocab.cpp`, and the model cards.
const MARKS: [[&str; 3]; 8] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<|prefix|>", "<|suffix|>", "<|middle|>"],
];

/// Whether a vocabulary has the marks.
pub(crate) fn has_marks(tokenizer: &Tokenizer) -> bool {
    marks(tokenizer).is_some()
}

/// Marks of a repository and of a file in it.
const REPOSITORY_MARKS: [&str; 6] = [
    "<|repo_name|>",
    "<repo_name>",
    "<|fim_repo|>",
    "<fim-repo>",
    "<reponame>",
    "<REPO>",
];
const FILE_MARKS: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// Inserts other files into a prompt, after the token that begins a text. The last `n_most` of their tokens are kept, as
/// llama.cpp does: editors send the newest file last.
pub(crate) fn with_extra(
    tokenizer: &Tokenizer,
    mut prompt: Vec<u32>,
    extra: &[ExtraText],
    n_most: usize,
) -> Vec<u32> {
    let mut tokens = extra_context(tokenizer, extra);
    tokens.drain(..tokens.len().saturating_sub(n_most));
    let at = usize::from(beginning(tokenizer).is_some());
    prompt.splice(at..at, tokens);
    prompt
}

/// The token that begins a text, where the model has its texts begin with one.
fn beginning(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.bos().filter(|_| tokenizer.adds_bos())
}

/// Other files, as the families that know files were trained to read them before the file with the gap; for the others,
/// between lines that say so. Source: llama.cpp `tools/server`, `format_infill`.
fn extra_context(tokenizer: &Tokenizer, extra: &[ExtraText]) -> Vec<u32> {
    if extra.is_empty() {
        return Vec::new();
    }
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let find = |marks: &[&str]| marks.iter().find_map(|mark| tokenizer.special_token(mark));
    let named = tokenizer.infill_ids();
    let file_mark = named.file.or_else(|| find(&FILE_MARKS));
    let mut tokens = Vec::new();
    if let Some(repository) = named.repository.or_else(|| find(&REPOSITORY_MARKS)) {
        tokens.push(repository);
        tokens.extend(tokenizer.encode("myproject\n", plain));
    }
    for file in extra {
        if let Some(mark) = file_mark {
            tokens.push(mark);
            let name = if file.filename.is_empty() {
                "tmp"
            } else {
                &file.filename
            };
            tokens.extend(tokenizer.encode(&format!("{name}\n"), plain));
        } else {
            tokens.extend(tokenizer.encode("\n\n--- snippet ---\n\n", plain));
        }
        tokens.extend(tokenizer.encode(&file.text, plain));
    }
    if let Some(mark) = file_mark {
        tokens.push(mark);
        tokens.extend(tokenizer.encode("filename\n", plain));
    }
    tokens
}

/// Returns the tokens that the model's file names, else those of a family.
fn marks(tokenizer: &Tokenizer) -> Option<[u32; 3]> {
    let named = tokenizer.infill_ids();
    if let (Some(before), Some(after), Some(middle)) = (named.prefix, named.suffix, named.middle) {
        return Some([before, after, middle]);
    }
    MARKS.iter().find_map(|[before, after, middle]| {
        let id = |text| tokenizer.special_token(text);
        Some([id(before)?, id(after)?, id(middle)?])
    })
}

/// Builds the prompt for an answer between `prefix`, with tokens after its text, and `suffix`.
///
/// # Errors
/// A model without the marks, by the field that asks for it.
pub(crate) fn infill_prompt(
    tokenizer: &Tokenizer,
    field: &str,
    (prefix, begun): (&str, &[u32]),
    suffix: &str,
) -> Result<Vec<u32>, ApiError> {
    let Some([before, after, middle]) = marks(tokenizer) else {
        return Err(ApiError::UnsupportedField {
            param: field.to_owned(),
            reason: "the vocabulary of this model has no tokens for filling in the middle",
        });
    };
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let mut tokens: Vec<u32> = beginning(tokenizer).into_iter().collect();
    tokens.push(before);
    tokens.extend(tokenizer.encode(prefix, plain));
    tokens.extend(begun);
    tokens.push(after);
    tokens.extend(tokenizer.encode(suffix, plain));
    tokens.push(middle);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenmill_gguf::{Metadata, StringArray};

    use super::*;

    fn tokenizer(marks: &[&str]) -> Tokenizer {
        let added: Vec<_> = (marks.iter().enumerate())
            .map(|(index, mark)| {
                json!({ "id": 2 + index, "content": mark, "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false })
            })
            .collect();
        let json = json!({
            "version": "1.0", "added_tokens": added, "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "post_processor": null,
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
        });
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn marks_are_those_that_the_file_names() {
        let read = |ids: [u32; 3]| {
            let tokens = [
                "<unk>",
                "a",
                "b",
                "[1]",
                "[2]",
                "[3]",
                "<|prefix|>",
                "<|suffix|>",
                "<|middle|>",
            ];
            let mut metadata = Metadata::new();
            metadata.insert("tokenizer.ggml.model", "gpt2").unwrap();
            metadata.insert("tokenizer.ggml.pre", "gpt-2").unwrap();
            metadata
                .insert("tokenizer.ggml.tokens", StringArray::from_iter(tokens))
                .unwrap();
            metadata
                .insert("tokenizer.ggml.token_type", vec![2, 1, 1, 3, 3, 3, 3, 3, 3])
                .unwrap();
            metadata
                .insert("tokenizer.ggml.merges", StringArray::from_iter(["a b"; 0]))
                .unwrap();
            for (key, id) in ["pre", "suf", "mid"].into_iter().zip(ids) {
                metadata
                    .insert(format!("tokenizer.ggml.fim_{key}_token_id"), id)
                    .unwrap();
            }
            Tokenizer::from_gguf(&metadata).unwrap()
        };
        let prompt = |tokenizer: &Tokenizer| infill_prompt(tokenizer, "suffix", ("a", &[]), "b").unwrap();
        assert_eq!(prompt(&read([3, 4, 5])), [3, 1, 4, 2, 5]);
        // An id outside of the vocabulary is ignored.
        assert_eq!(prompt(&read([3, 4, u32::MAX])), [6, 1, 7, 2, 8]);
    }

    #[test]
    fn the_marks_stand_around_the_texts() {
        let known = tokenizer(&MARKS[0]);
        assert!(has_marks(&known));
        assert_eq!(
            infill_prompt(&known, "suffix", ("a", &[1]), "ba").expect("a prompt"),
            [2, 0, 1, 3, 1, 0, 4]
        );
        let unknown = tokenizer(&MARKS[0][..2]);
        let error = infill_prompt(&unknown, "suffix", ("a", &[]), "b").expect_err("a mark is missing");
        assert_eq!((error.status(), error.param()), (400, Some("suffix")));
        let marks = [&MARKS[0][..], &["<|repo_name|>", "<|file_sep|>"]].concat();
        let of_files = tokenizer(&marks);
        let extra = [ExtraText {
            text: "b".to_owned(),
            filename: "a".to_owned(),
        }];
        let alone = infill_prompt(&of_files, "suffix", ("a", &[]), "b").expect("a prompt");
        let prompt = with_extra(&of_files, alone.clone(), &extra, 100);
        let cut = with_extra(&of_files, alone.clone(), &extra, 3);
        assert_eq!(cut, prompt[prompt.len() - alone.len() - 3..], "the end is kept");
        assert_eq!(with_extra(&of_files, alone.clone(), &extra, 0), alone);
        // The vocabulary has the letters a and b only: of "myproject" and "filename" an a is left.
        let kept: Vec<u32> = prompt.into_iter().filter(|&id| id < 7).collect();
        let [before, after, middle, repository, file] = [2, 3, 4, 5, 6];
        assert_eq!(
            kept,
            [repository, file, 0, 1, file, 0, before, 0, after, 1, middle]
        );
    }
}
