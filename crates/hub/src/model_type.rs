//! Parses the name of a GGUF file: the type of its weights, and its part number.
//!
//! Only names matter: a repository is listed before anything of it is downloaded. Invariant: a type is only
//! what a quantizer writes into names; no other word of a name is taken for one.

use tokenmill_gguf::{NextnName, part_of_name};

/// The parsed name of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufName<'a> {
    /// The path without the part number and the extension.
    pub(crate) stem: &'a str,
    /// The extension, in lower or upper case.
    end: &'static str,
    /// Part number from 1, and number of parts; one of one for an unsplit model.
    pub(crate) part: (u32, u32),
    /// The type of the weights, such as `Q4_K_M`, if the name has one.
    pub(crate) ty: Option<String>,
}

impl<'a> GgufName<'a> {
    /// Parses a path; `None` if it is not a GGUF file.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let end = [".gguf", ".GGUF"].into_iter().find(|end| path.ends_with(end))?;
        let whole = &path[..path.len() - end.len()];
        let (stem, part) = split_part(whole);
        let (folder, file) = stem.rsplit_once('/').unwrap_or(("", stem));
        let folder = folder.rsplit('/').next().unwrap_or_default();
        let ty = type_in(file).or_else(|| type_in(folder));
        Some(Self { stem, end, part, ty })
    }

    /// Returns the path of another part.
    pub(crate) fn path_of_part(&self, no: u32) -> String {
        let Self { stem, end, .. } = self;
        match self.part.1 {
            1 => format!("{stem}{end}"),
            count => format!("{stem}-{no:05}-of-{count:05}{end}"),
        }
    }

    /// Returns whether this is the image encoder of a model.
    pub(crate) fn is_projector(&self) -> bool {
        self.file().to_lowercase().contains("mmproj")
    }

    /// Returns whether this is a file that a model can be opened from. Separate MTP files are excluded; a
    /// model that includes MTP layers has the word elsewhere in its name.
    pub(crate) fn is_model(&self) -> bool {
        let is_importance = self.file().to_lowercase().contains("imatrix");
        !self.is_projector() && self.nextn_name().is_none() && !is_importance
    }

    /// Returns the name of a separate MTP file; `None` for other files and other kinds of networks.
    pub(crate) fn nextn(&self) -> Option<NextnName> {
        self.nextn_name().filter(|name| !name.is_assistant())
    }

    fn nextn_name(&self) -> Option<NextnName> {
        NextnName::of(&format!("{}{}", self.file(), self.end))
    }

    /// Returns the folder in its repository, with a trailing slash unless it is the root.
    pub(crate) fn folder(&self) -> &str {
        let n_file = self.file().len();
        &self.stem[..self.stem.len() - n_file]
    }

    pub(crate) fn file(&self) -> &str {
        self.stem.rsplit('/').next().unwrap_or_default()
    }
}

/// Returns whether a file name is that of a GGUF model, and not of a companion file: an image encoder, an
/// importance matrix, or MTP layers.
pub fn is_model_file_name(name: &str) -> bool {
    GgufName::of(name).is_some_and(|name| name.is_model())
}

/// Returns the texts that select a GGUF file in its repository: the type of its weights, if its path states
/// it, and its name without extension and part number.
pub fn variants_of_file(path: &str) -> Vec<String> {
    let Some(name) = GgufName::of(path) else {
        return Vec::new();
    };
    let file = name.file().to_owned();
    name.ty.into_iter().chain([file]).collect()
}

/// Returns the first missing part of files such as `model-00001-of-00002.safetensors`.
pub(crate) fn missing_shard(paths: &[&str]) -> Option<String> {
    const END: &str = ".safetensors";
    paths.iter().find_map(|path| {
        let (stem, (_, count)) = split_part(path.strip_suffix(END)?);
        (1..=count)
            .filter(|_| count > 1)
            .map(|no| format!("{stem}-{no:05}-of-{count:05}{END}"))
            .find(|part| !paths.contains(&part.as_str()))
    })
}

/// Splits `-00001-of-00003` off a name.
fn split_part(whole: &str) -> (&str, (u32, u32)) {
    match part_of_name(whole) {
        Some((stem, no, count)) if count > 1 && (1..=count).contains(&no) => (stem, (no, count)),
        _ => (whole, (1, 1)),
    }
}

/// Returns the last type in a name, in upper case.
fn type_in(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split(['-', '.']).collect();
    (0..words.len()).rev().find_map(|word_idx| {
        let word = words[word_idx].to_uppercase();
        // Some names join the words of a model with underscores, which types contain too.
        let starts = (word.match_indices('_').map(|(at, _)| at + 1)).collect::<Vec<_>>();
        let ty = [0]
            .into_iter()
            .chain(starts)
            .map(|start| &word[start..])
            .find(|text| is_type(text))?;
        let is_dynamic = word_idx > 0 && words[word_idx - 1].eq_ignore_ascii_case("UD");
        Some(if is_dynamic {
            format!("UD-{ty}")
        } else {
            ty.to_owned()
        })
    })
}

/// Returns whether a text in upper case is a type of weights.
fn is_type(text: &str) -> bool {
    const FLOATS: [&str; 8] = ["F16", "F32", "BF16", "FP16", "FP32", "FP8", "MXFP4", "NVFP4"];
    /// Suffixes after the bits of a quantized type.
    const ENDS: [&str; 18] = [
        "0", "1", "2", "3", "4", "8", "K", "S", "M", "L", "XS", "XXS", "XL", "XXL", "NL", "MOE", "R4", "R8",
    ];
    let mut parts = text.split('_');
    let first = parts.next().unwrap_or_default();
    let bits = first.strip_prefix(['I', 'T']).unwrap_or(first).strip_prefix('Q');
    let is_quantized =
        bits.is_some_and(|bits| bits.len() == 1 && bits.bytes().all(|byte| byte.is_ascii_digit()));
    (is_quantized || FLOATS.contains(&first)) && parts.all(|part| ENDS.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, ty: Option<&str>, part: (u32, u32)) {
        let name = GgufName::of(path).unwrap();
        assert_eq!((name.ty.as_deref(), name.part), (ty, part), "{path}");
    }

    #[test]
    fn names_say_type_and_part() {
        check("Llama-3.2-1B-Instruct-Q4_K_M.gguf", Some("Q4_K_M"), (1, 1));
        check("qwen2.5-0.5b-instruct-q8_0.gguf", Some("Q8_0"), (1, 1));
        check("tinyllama-1.1b-chat-v1.0.Q2_K.gguf", Some("Q2_K"), (1, 1));
        check("model-BF16.gguf", Some("BF16"), (1, 1));
        check("gpt-oss-20b-mxfp4.gguf", Some("MXFP4"), (1, 1));
        check("x-UD-IQ2_XXS.gguf", Some("UD-IQ2_XXS"), (1, 1));
        check("x-UD-Q4_K_XL-00002-of-00003.gguf", Some("UD-Q4_K_XL"), (2, 3));
        check("bitnet-TQ1_0.gguf", Some("TQ1_0"), (1, 1));
        check("my_model_Q5_K_S.gguf", Some("Q5_K_S"), (1, 1));
        check("Q4_K_M/model-00001-of-00002.gguf", Some("Q4_K_M"), (1, 2));
        check("Qwen3-0.6B.gguf", None, (1, 1));
        check("QwQ-32B.gguf", None, (1, 1));
        check("one-of-many.gguf", None, (1, 1));
        assert_eq!(GgufName::of("config.json"), None);
    }

    #[test]
    fn projectors_and_importance_matrices_are_no_models() {
        assert!(GgufName::of("mmproj-model-f16.gguf").unwrap().is_projector());
        assert!(!GgufName::of("sub/mmproj-BF16.gguf").unwrap().is_model());
        assert!(!GgufName::of("imatrix_unsloth.gguf").unwrap().is_model());
        assert!(GgufName::of("mmproj/model-Q8_0.gguf").unwrap().is_model());
    }

    #[test]
    fn layers_for_further_tokens_alone_are_no_models() {
        for name in [
            "mtp-Qwen-Q4_K_M.gguf",
            "sub/MTP-Qwen-Q8_0.gguf",
            "nextn-m-Q8_0.gguf",
        ] {
            assert!(!is_model_file_name(name), "{name}");
        }
        assert!(GgufName::of("a/mtp-Qwen-Q4_K_M.gguf").unwrap().nextn().is_some());
        for name in ["mtp-gemma-4-31B-it.gguf", "Qwen-MTP-Q8_0.gguf", "mmproj-F16.gguf"] {
            assert!(GgufName::of(name).unwrap().nextn().is_none(), "{name}");
        }
        for name in [
            "Qwen-MTP-Q4_K_M.gguf",
            "mtp-models/Qwen-Q8_0.gguf",
            "mtpless-Q8_0.gguf",
        ] {
            assert!(is_model_file_name(name), "{name}");
        }
    }

    #[test]
    fn a_missing_shard_is_named() {
        let shards = ["m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors"];
        assert_eq!(
            missing_shard(&shards).as_deref(),
            Some("m-00002-of-00003.safetensors")
        );
        assert_eq!(
            missing_shard(&["m-00001-of-00001.safetensors", "x.safetensors"]),
            None
        );
        let whole = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"];
        assert_eq!(missing_shard(&whole), None);
    }

    #[test]
    fn a_file_is_told_apart_by_its_type_and_its_name() {
        for (path, expected) in [
            ("a/x-Q4_K_M.gguf", &["Q4_K_M", "x-Q4_K_M"][..]),
            (
                "a/x-UD-Q4_K_XL-00001-of-00002.gguf",
                &["UD-Q4_K_XL", "x-UD-Q4_K_XL"],
            ),
            ("Q8_0/x.gguf", &["Q8_0", "x"]),
            ("x.gguf", &["x"]),
            ("model.safetensors", &[]),
        ] {
            assert_eq!(variants_of_file(path), expected, "{path}");
        }
    }

    #[test]
    fn parts_have_siblings() {
        let name = GgufName::of("a/m-00002-of-00003.gguf").unwrap();
        assert_eq!(name.path_of_part(1), "a/m-00001-of-00003.gguf");
        for path in ["m.gguf", "m.GGUF"] {
            assert_eq!(GgufName::of(path).unwrap().path_of_part(1), path);
        }
    }
}
