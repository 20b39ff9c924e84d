//! Parses the lists that a hub server sends.
//!
//! They come from any server that the endpoint names, and may be long. Invariant: the number of kept entries
//! is bounded, and other fields are skipped while reading, because a tree of all values takes up to a hundred
//! times the size of the text.

use std::{collections::BTreeSet, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Maximum number of files of a repository. The largest have about ten thousand.
const MAX_FILES: usize = 200_000;

/// Maximum number of weight files in an index.
const MAX_PARTS: usize = 10_000;

/// The hub's description of a repository.
#[derive(Debug, Deserialize)]
pub(crate) struct RepositoryList {
    #[serde(default)]
    pub(crate) sha: String,
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_FILES>")]
    pub(crate) siblings: Vec<Sibling>,
}

/// A file of a repository.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sibling {
    #[serde(default)]
    pub(crate) rfilename: String,
    pub(crate) size: Option<u64>,
    pub(crate) blob_id: Option<String>,
    pub(crate) lfs: Option<LargeFile>,
}

/// The description of a large file.
#[derive(Debug, Deserialize)]
pub(crate) struct LargeFile {
    pub(crate) sha256: Option<String>,
    pub(crate) size: Option<u64>,
}

/// A model found by a search.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    id: Option<String>,
    #[serde(rename = "modelId")]
    model_id: Option<String>,
}

impl Found {
    /// Returns the model's name from either field.
    pub(crate) fn into_name(self) -> Option<String> {
        self.id.or(self.model_id)
    }
}

/// Returns the files named in a safetensors index.
///
/// # Errors
/// An error if `bytes` is not an index, or names too many files.
pub(crate) fn parts_of_index(bytes: &[u8]) -> Result<BTreeSet<String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Index {
        #[serde(default)]
        weight_map: Parts,
    }
    serde_json::from_slice::<Index>(bytes).map(|index| index.weight_map.0)
}

/// Collects the values of a map from tensors to files.
#[derive(Default)]
struct Parts(BTreeSet<String>);

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Parts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file for each tensor")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Parts, M::Error> {
                let mut parts = BTreeSet::new();
                while let Some((IgnoredAny, part)) = map.next_entry::<IgnoredAny, String>()? {
                    parts.insert(part);
                    if parts.len() > MAX_PARTS {
                        return Err(M::Error::custom(format_args!("more than {MAX_PARTS} files")));
                    }
                }
                Ok(Parts(parts))
            }
        }
        source.deserialize_map(Values)
    }
}

/// Reads a list of at most `MAX` entries.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    source: D,
) -> Result<Vec<T>, D::Error> {
    struct AtMost<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for AtMost<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<T>, S::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                if entries.len() == MAX {
                    return Err(S::Error::custom(format_args!("more than {MAX} entries")));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }
    source.deserialize_seq(AtMost::<T, MAX>(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(n: usize) -> Result<RepositoryList, serde_json::Error> {
        let entry = r#"{"rfilename":"a","size":null,"tree":[{"":{}},{"":{}}]}"#;
        let text = format!("{{\"sha\":\"b\",\"siblings\":[{}]}}", vec![entry; n].join(","));
        serde_json::from_str(&text)
    }

    #[test]
    fn a_list_is_read_up_to_its_bound_and_its_trees_are_passed_over() {
        let read = list(3).expect("a list");
        assert_eq!((read.sha.as_str(), read.siblings.len()), ("b", 3));
        assert!(list(MAX_FILES).is_ok() && list(MAX_FILES + 1).is_err());
        let empty: RepositoryList = serde_json::from_str("{}").expect("a list");
        assert!(empty.sha.is_empty() && empty.siblings.is_empty());
    }

    #[test]
    fn an_index_is_the_set_of_its_files() {
        let parts = |text: &str| parts_of_index(text.as_bytes()).map(Vec::from_iter);
        let two = r#"{"metadata":{"total":[1]},"weight_map":{"a":"x","b":"y","c":"x"}}"#;
        assert_eq!(parts(two).unwrap(), ["x", "y"]);
        assert!(parts("{}").unwrap().is_empty() && parts("[]").unwrap().is_empty());
        for none in ["", "7", r#"{"weight_map":{"a":1}}"#] {
            assert!(parts(none).is_err(), "{none}");
        }
        let many: Vec<String> = (0..=MAX_PARTS).map(|no| format!("\"{no}\":\"{no}\"")).collect();
        assert!(parts(&format!("{{\"weight_map\":{{{}}}}}", many.join(","))).is_err());
    }
}
