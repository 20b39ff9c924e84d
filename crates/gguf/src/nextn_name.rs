//! [`NextnName`]: the names of files that contain only a model's MTP layers.
//!
//! Downloads and loads choose among such files, and must choose alike. Invariant: only names matter here, in
//! any case.

use crate::part_of_name;

/// The parsed name of a file `mtp-MODEL.gguf` or `nextn-MODEL.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextnName {
    /// The model's name in lower case, without the extension.
    model: String,
}

impl NextnName {
    /// Parses the name of a file, without folders; `None` if it has another form.
    pub fn of(file_name: &str) -> Option<Self> {
        let name = file_name.to_ascii_lowercase();
        let stem = name.strip_suffix(".gguf")?;
        let model = ["mtp-", "nextn-"]
            .iter()
            .find_map(|start| stem.strip_prefix(start))?;
        Some(Self {
            model: model.to_owned(),
        })
    }

    /// Returns whether it is one of Gemma 4's assistants, which are networks of another kind and unsupported.
    pub fn is_assistant(&self) -> bool {
        self.model.starts_with("gemma-4") || self.model.starts_with("gemma4")
    }

    /// Returns the length of the common prefix with the name of a model's file, plus one if the names are
    /// equal. Among several files, the one with the highest value is used, and among equals the smallest.
    pub fn likeness(&self, model_file_name: &str) -> usize {
        let name = model_file_name.to_ascii_lowercase();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let stem = part_of_name(stem).map_or(stem, |(model, ..)| model);
        let pairs = stem.chars().zip(self.model.chars());
        pairs.take_while(|(a, b)| a == b).count() + usize::from(stem == self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_called_so_have_layers() {
        for (name, expected) in [
            ("mtp-Qwen-Q8_0.gguf", true),
            ("MTP-x.GGUF", true),
            ("nextn-x.gguf", true),
            ("Qwen-MTP-Q8_0.gguf", false),
            ("mtp.gguf", false),
            ("mtp-notes.txt", false),
            ("m", false),
        ] {
            assert_eq!(NextnName::of(name).is_some(), expected, "{name}");
        }
        let is_assistant = |name: &str| NextnName::of(name).is_some_and(|name| name.is_assistant());
        assert!(is_assistant("mtp-gemma-4-E2B.gguf") && is_assistant("mtp-Gemma4.gguf"));
        assert!(!is_assistant("mtp-gemma-3.gguf"));
    }

    #[test]
    fn the_same_name_is_more_alike_than_one_that_begins_so() {
        let likeness = |name: &str, model: &str| NextnName::of(name).map(|name| name.likeness(model));
        assert_eq!(likeness("mtp-M-Q4.gguf", "m-q4.gguf"), Some(5));
        assert_eq!(likeness("mtp-m-Q4_K.gguf", "m-Q4.gguf"), Some(4));
        assert_eq!(likeness("mtp-m-Q4.gguf", "m-Q4-00001-of-00002.gguf"), Some(5));
        assert_eq!(likeness("mtp-x.gguf", "m.gguf"), Some(0));
    }
}
