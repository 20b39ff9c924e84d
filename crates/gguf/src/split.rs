//! Models split over several files: the part number of a file, and the names of the others.
//!
//! This is about names and counts only. Invariant: a part's number comes from its metadata and must agree
//! with its name, so that a renamed file is noticed.

use std::path::{Path, PathBuf};

use crate::{GgufError, Metadata};

pub(crate) const NO_KEY: &str = "split.no";
pub(crate) const COUNT_KEY: &str = "split.count";
pub(crate) const TENSORS_COUNT_KEY: &str = "split.tensors.count";

/// The position of a file in a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its number, from 0.
    pub(crate) no: usize,
    /// Number of parts.
    pub(crate) count: usize,
}

impl Part {
    /// Reads a file's position in a split model; `None` for an unsplit model.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let count = metadata.opt_u32(COUNT_KEY)?.unwrap_or(1) as usize;
        if count <= 1 {
            return Ok(None);
        }
        let no = metadata.u32(NO_KEY)? as usize;
        if no >= count {
            return Err(GgufError::SplitMismatch {
                key: NO_KEY,
                expected: count - 1,
                found: no,
            });
        }
        Ok(Some(Self { no, count }))
    }

    /// Returns the path of part `no`, given that of this part.
    pub(crate) fn sibling(self, path: &Path, no: usize) -> Result<PathBuf, GgufError> {
        let suffix = suffix(self.no, self.count);
        let stem = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(&suffix));
        let Some(stem) = stem else {
            return Err(GgufError::SplitName {
                no: self.no + 1,
                count: self.count,
                expected_suffix: suffix,
            });
        };
        Ok(path.with_file_name(stem.to_owned() + &self::suffix(no, self.count)))
    }
}

fn suffix(no: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Splits a name like `m-00001-of-00003` into the model's name, the part number from 1, and the number of
/// parts; `None` for other names.
pub fn part_of_name(stem: &str) -> Option<(&str, u32, u32)> {
    let number = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let (before, count) = stem.rsplit_once("-of-")?;
    let (model, no) = before.rsplit_once('-')?;
    Some((model, number(no)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_by_two_numbers_of_five_digits() {
        assert_eq!(part_of_name("a-of-b-00002-of-00013"), Some(("a-of-b", 2, 13)));
        for other in [
            "m",
            "one-of-many",
            "m-2-of-3",
            "m-00002-of-3",
            "m-0000x-of-00003",
            "00001-of-00002",
        ] {
            assert_eq!(part_of_name(other), None, "{other}");
        }
    }

    #[test]
    fn siblings_differ_in_the_number_only() {
        let part = Part { no: 1, count: 3 };
        let path = Path::new("dir/m-00002-of-00003.gguf");
        assert_eq!(
            part.sibling(path, 0).unwrap(),
            Path::new("dir/m-00001-of-00003.gguf")
        );
        assert!(matches!(
            part.sibling(Path::new("dir/m.gguf"), 0),
            Err(GgufError::SplitName { no: 2, count: 3, .. })
        ));
    }

    #[test]
    fn a_count_of_one_is_a_whole_model() {
        let mut metadata = Metadata::new();
        metadata.insert(COUNT_KEY, 1_u16).unwrap();
        assert_eq!(Part::of(&metadata).unwrap(), None);
    }
}
