//! [`Variant`]: the models formed by a repository's GGUF files, and the selection of one of them.
//!
//! Only names and sizes matter. Invariant: the choice depends only on these, the request and the memory, so
//! that a server and the cache give the same answer.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{HubError, ModelName, model_type::GgufName};

/// A model of a repository: one type, in one file or in several parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// The type in its name, such as `Q4_K_M`, or else the name of the file.
    pub label: String,
    /// Paths of its files, the first part first.
    pub files: Vec<String>,
    /// Total bytes of the files.
    pub n_bytes: u64,
    /// The first part that is missing.
    pub(crate) missing: Option<String>,
}

/// A selected variant, with the reason if the request named none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) variant: Variant,
    pub(crate) why: Option<String>,
}

/// Types in order of preference. Most people want Q4_K_M; the next ones have a similar size, then larger ones
/// follow.
const PREFERENCE: [&str; 26] = [
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_L",
    "Q4_K_S",
    "Q4_K",
    "IQ4_XS",
    "IQ4_NL",
    "MXFP4",
    "MXFP4_MOE",
    "Q4_0",
    "Q4_1",
    "Q4",
    "NVFP4",
    "Q5_K_M",
    "UD-Q5_K_XL",
    "Q5_K_S",
    "Q5_0",
    "Q6_K",
    "Q8_0",
    "Q3_K_L",
    "Q3_K_M",
    "UD-Q3_K_XL",
    "BF16",
    "F16",
    "FP16",
    "F32",
];

/// A name without its part number, and the sizes of the existing parts.
type Group<'a> = (GgufName<'a>, BTreeMap<u32, u64>);

/// Groups files into models; `files` are paths with sizes.
pub(crate) fn variants(files: &[(String, u64)]) -> Vec<Variant> {
    let mut groups: BTreeMap<(&str, u32), Group<'_>> = BTreeMap::new();
    for (path, n_bytes) in files {
        let Some(name) = GgufName::of(path).filter(GgufName::is_model) else {
            continue;
        };
        let (no, count) = name.part;
        let (_, parts) = groups
            .entry((name.stem, count))
            .or_insert_with(|| (name, BTreeMap::new()));
        parts.insert(no, *n_bytes);
    }
    let mut variants: Vec<Variant> = groups
        .into_values()
        .map(|(name, parts)| {
            let missing = (1..=name.part.1).find(|no| !parts.contains_key(no));
            Variant {
                label: name.ty.clone().unwrap_or_else(|| name.path_of_part(1)),
                files: parts.keys().map(|no| name.path_of_part(*no)).collect(),
                n_bytes: parts.values().copied().fold(0, u64::saturating_add),
                missing: missing.map(|no| name.path_of_part(no)),
            }
        })
        .collect();
    variants.sort_by(|a, b| (a.n_bytes, &a.label).cmp(&(b.n_bytes, &b.label)));
    variants
}

/// Selects the variant that a name requests, or the preferred one of those that fit into `memory_bytes`.
///
/// # Errors
/// An error if nothing matches or nothing fits; each lists the available variants.
pub(crate) fn choose(
    variants: &[Variant],
    name: &ModelName,
    memory_bytes: Option<u64>,
) -> Result<Choice, HubError> {
    let repository = name.repository();
    let choice = if let Some(wanted) = name.wanted() {
        Choice {
            variant: wished(variants, wanted, repository)?.clone(),
            why: None,
        }
    } else {
        let choice = preferred(variants, repository, memory_bytes)?;
        // Several files of a type are several models, and no rule here knows which is meant.
        let is_same = |variant: &&Variant| variant.missing.is_none() && variant.label == choice.variant.label;
        let same: Vec<&Variant> = variants.iter().filter(is_same).collect();
        if same.len() > 1 {
            return Err(HubError::SeveralOfType {
                name: name.repository(),
                wanted: choice.variant.label.clone(),
                files: same.iter().map(|variant| variant.files[0].clone()).collect(),
            });
        }
        choice
    };
    match &choice.variant.missing {
        Some(missing) => Err(HubError::MissingPart {
            name: name.repository(),
            missing: missing.clone(),
        }),
        None => Ok(choice),
    }
}

fn wished<'a>(variants: &'a [Variant], wanted: &str, name: String) -> Result<&'a Variant, HubError> {
    let with_end = format!("{wanted}.gguf");
    let is_file = |variant: &&Variant| {
        (variant.files.iter())
            .any(|file| file == wanted || *file == with_end || file.ends_with(&format!("/{wanted}")))
    };
    let has_label = |label: &str| label.eq_ignore_ascii_case(wanted);
    let labelled: Vec<&Variant> = variants
        .iter()
        .filter(|variant| has_label(&variant.label))
        .collect();
    // Dynamic quantizations of a type are published in addition to the plain one or instead of it.
    let dynamic = || {
        let variants = variants.iter();
        variants.filter(|variant| variant.label.strip_prefix("UD-").is_some_and(has_label))
    };
    let found = match variants.iter().find(is_file) {
        Some(variant) => vec![variant],
        None if labelled.is_empty() => dynamic().collect(),
        None => labelled,
    };
    match found[..] {
        [variant] => Ok(variant),
        [] => Err(HubError::NoSuchType {
            name,
            wanted: wanted.to_owned(),
            there: variants.iter().map(|variant| variant.label.clone()).collect(),
        }),
        _ => Err(HubError::SeveralOfType {
            name,
            wanted: wanted.to_owned(),
            files: found.iter().map(|variant| variant.files[0].clone()).collect(),
        }),
    }
}

/// Estimates the memory of a loaded model from its file size: the weights, plus a tenth and 256 MiB for keys,
/// values and activations.
fn memory_of(n_bytes: u64) -> u64 {
    n_bytes.saturating_add(n_bytes / 10).saturating_add(256 << 20)
}

fn preferred(variants: &[Variant], name: String, memory_bytes: Option<u64>) -> Result<Choice, HubError> {
    let fits = |variant: &&Variant| memory_bytes.is_none_or(|bytes| memory_of(variant.n_bytes) <= bytes);
    let rank = |variant: &Variant| {
        let place = PREFERENCE.iter().position(|ty| *ty == variant.label);
        place.unwrap_or(PREFERENCE.len())
    };
    let whole = || variants.iter().filter(|variant| variant.missing.is_none());
    let Some(first) = whole().min_by_key(|variant| rank(variant)) else {
        // If no variant is complete, the error names the missing part.
        return variants.first().map_or_else(
            || Err(HubError::NothingToOpen { name: name.clone() }),
            |variant| {
                let variant = variant.clone();
                Ok(Choice { variant, why: None })
            },
        );
    };
    if fits(&first) {
        let why = match (whole().count(), first.label.as_str()) {
            (1, _) => "it is the only one".to_owned(),
            (_, "Q4_K_M") => "small, good for its size, and it fits into memory".to_owned(),
            _ => "there is no Q4_K_M, and it is the nearest type that fits into memory".to_owned(),
        };
        return Ok(Choice {
            variant: first.clone(),
            why: Some(why),
        });
    }
    // The largest one that fits is the best: fewer bits cost quality.
    if let Some(variant) = whole().filter(fits).max_by_key(|variant| variant.n_bytes) {
        return Ok(Choice {
            variant: variant.clone(),
            why: Some(format!(
                "the largest that fits into memory; {} does not",
                first.label
            )),
        });
    }
    let smallest = whole().min_by_key(|variant| variant.n_bytes).unwrap_or(first);
    Err(HubError::NothingFits {
        name,
        smallest: smallest.label.clone(),
        n_bytes: smallest.n_bytes,
        memory_bytes: memory_bytes.unwrap_or(u64::MAX),
    })
}

/// Returns the image encoder of a repository: the 16-bit one if there are several.
pub(crate) fn projector(files: &[(String, u64)]) -> Option<String> {
    let rank = |ty: &str| {
        let order = ["F16", "FP16", "BF16", "Q8_0", "F32"];
        order.iter().position(|known| *known == ty).unwrap_or(order.len())
    };
    (files.iter())
        .filter_map(|(path, _)| Some((path, GgufName::of(path).filter(GgufName::is_projector)?)))
        .min_by_key(|(path, name)| (rank(name.ty.as_deref().unwrap_or_default()), path.as_str()))
        .map(|(path, _)| path.clone())
}

/// Returns the file of MTP layers for a model, and its bytes. It must be in the model's folder or above; the
/// nearest is preferred, then the one with the most similar name, then the smallest.
pub(crate) fn nextn(files: &[(String, u64)], model: &Variant) -> Option<(String, u64)> {
    let model = GgufName::of(model.files.first()?)?;
    (files.iter())
        .filter_map(|(path, n_bytes)| {
            let name = GgufName::of(path).filter(|name| name.part.1 == 1)?;
            let n_same = name.nextn()?.likeness(model.file());
            let (n_folder, is_above) = (name.folder().len(), model.folder().starts_with(name.folder()));
            is_above.then_some((Reverse(n_folder), Reverse(n_same), *n_bytes, path))
        })
        .min()
        .map(|(.., n_bytes, path)| (path.clone(), n_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn files(sizes: &[(&str, u64)]) -> Vec<(String, u64)> {
        sizes
            .iter()
            .map(|(path, n_bytes)| ((*path).to_owned(), *n_bytes))
            .collect()
    }

    fn repository() -> Vec<Variant> {
        variants(&files(&[
            ("README.md", 1),
            ("m-Q2_K.gguf", GIB),
            ("m-Q4_K_M.gguf", 2 * GIB),
            ("m-Q8_0.gguf", 4 * GIB),
            ("mmproj-F16.gguf", GIB),
            ("F16/m-F16-00001-of-00002.gguf", 4 * GIB),
            ("F16/m-F16-00002-of-00002.gguf", 3 * GIB),
        ]))
    }

    fn chosen(name: &str, memory_bytes: Option<u64>) -> Result<Choice, String> {
        let name: ModelName = name.parse().unwrap();
        choose(&repository(), &name, memory_bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_are_one_variant() {
        let labels: Vec<String> = repository().into_iter().map(|variant| variant.label).collect();
        assert_eq!(labels, ["Q2_K", "Q4_K_M", "Q8_0", "F16"]);
        let f16 = chosen("a/b:f16", None).unwrap().variant;
        assert_eq!(
            f16.files,
            ["F16/m-F16-00001-of-00002.gguf", "F16/m-F16-00002-of-00002.gguf"]
        );
        assert_eq!(f16.n_bytes, 7 * GIB);
    }

    #[test]
    fn q4_k_m_is_taken_where_it_fits_and_else_the_largest_that_does() {
        let check = |memory_bytes: Option<u64>, label: &str, why: &str| {
            let choice = chosen("a/b", memory_bytes).unwrap();
            assert_eq!(choice.variant.label, label);
            let reason = choice.why.unwrap();
            assert!(reason.contains(why), "{reason}");
        };
        check(None, "Q4_K_M", "small, good for its size");
        check(Some(64 * GIB), "Q4_K_M", "small, good for its size");
        check(Some(2 * GIB), "Q2_K", "Q4_K_M does not");
        let error = chosen("a/b", Some(GIB)).unwrap_err();
        assert!(error.contains("the smallest, Q2_K"), "{error}");
    }

    #[test]
    fn a_wish_is_a_type_or_a_file() {
        for wish in ["a/b:q8_0", "a/b:m-Q8_0.gguf", "a/b:m-Q8_0"] {
            assert_eq!(chosen(wish, Some(1)).unwrap().variant.label, "Q8_0", "{wish}");
        }
        assert_eq!(
            chosen("a/b:Q5_K_M", None).unwrap_err(),
            "`a/b` has no `Q5_K_M`; it has Q2_K, Q4_K_M, Q8_0, F16"
        );
        let name: ModelName = "a/b:Q4_K_XL".parse().unwrap();
        let dynamic = variants(&files(&[("m-UD-Q4_K_XL.gguf", 1), ("m-UD-Q4_K_M.gguf", 1)]));
        assert_eq!(choose(&dynamic, &name, None).unwrap().variant.label, "UD-Q4_K_XL");
        let twice = variants(&files(&[("m-1b-Q8_0.gguf", 1), ("m-3b-Q8_0.gguf", 1)]));
        let error = choose(&twice, &name.with_wanted("Q8_0"), None).unwrap_err();
        let unasked = choose(&twice, &"a/b".parse().unwrap(), None).unwrap_err();
        for error in [error, unasked] {
            assert!(
                error.to_string().ends_with("m-1b-Q8_0.gguf, m-3b-Q8_0.gguf"),
                "{error}"
            );
        }
        let other = variants(&files(&[
            ("m-1b-Q8_0.gguf", 1),
            ("m-3b-Q8_0.gguf", 1),
            ("m-Q4_K_M.gguf", 1),
        ]));
        assert_eq!(chosen_of(&other, "a/b").variant.label, "Q4_K_M");
    }

    fn chosen_of(variants: &[Variant], name: &str) -> Choice {
        choose(variants, &name.parse().unwrap(), None).unwrap()
    }

    #[test]
    fn layers_for_further_tokens_alone_are_never_taken() {
        let there = variants(&files(&[("Qwen-Q6_K.gguf", 5), ("mtp-Qwen-Q4_K_M.gguf", 1)]));
        assert_eq!(chosen_of(&there, "a/b").variant.files, ["Qwen-Q6_K.gguf"]);
        let both = variants(&files(&[("mod-Q8_0.gguf", 5), ("mtp-mod-Q8_0.gguf", 1)]));
        assert_eq!(chosen_of(&both, "a/b:q8_0").variant.files, ["mod-Q8_0.gguf"]);
        let alone = variants(&files(&[("mtp-Qwen-Q4_K_M.gguf", 1)]));
        assert!(alone.is_empty());
    }

    #[test]
    fn a_model_takes_the_layers_that_are_nearest_and_called_like_it() {
        let there = files(&[
            ("m-Q4_K_M.gguf", 50),
            ("Q8_0/m-Q8_0-00001-of-00002.gguf", 50),
            ("Q8_0/m-Q8_0-00002-of-00002.gguf", 50),
            ("mtp-m-Q8_0.gguf", 8),
            ("mtp-m-Q4_K_M.gguf", 5),
            ("mtp-m-BF16.gguf", 16),
            ("mtp-m-Q5_0-00001-of-00002.gguf", 1),
            ("BF16/mtp-m-Q8_0.gguf", 1),
            ("mtp-gemma-4-m-Q4_K_M.gguf", 1),
        ]);
        let check = |there: &[(String, u64)], model: &str, expected: Option<(&str, u64)>| {
            let variants = variants(there);
            let model = chosen_of(&variants, &format!("a/b:{model}")).variant;
            let found = nextn(there, &model);
            let found = found.as_ref().map(|(path, n_bytes)| (path.as_str(), *n_bytes));
            assert_eq!(found, expected, "{model:?}");
        };
        check(&there, "Q4_K_M", Some(("mtp-m-Q4_K_M.gguf", 5)));
        check(&there, "Q8_0", Some(("mtp-m-Q8_0.gguf", 8)));
        // With another type, the smaller is chosen unless one has a more similar name.
        check(&there[1..4], "Q8_0", Some(("mtp-m-Q8_0.gguf", 8)));
        let two = files(&[("m-F16.gguf", 50), ("mtp-m-Q8_0.gguf", 8), ("mtp-m-Q4_0.gguf", 5)]);
        check(&two, "F16", Some(("mtp-m-Q4_0.gguf", 5)));
        let sizes = files(&[
            ("m-1b-Q8_0.gguf", 50),
            ("m-3b-F16.gguf", 50),
            ("mtp-m-1b-F16.gguf", 9),
            ("mtp-m-3b-Q8_0.gguf", 9),
        ]);
        check(&sizes, "Q8_0", Some(("mtp-m-1b-F16.gguf", 9)));
        check(&sizes, "F16", Some(("mtp-m-3b-Q8_0.gguf", 9)));
        check(&there[..1], "Q4_K_M", None);
        // The same name is preferred to a smaller file with the same prefix, as when the model is opened.
        let alike = files(&[
            ("m-Q4_K.gguf", 50),
            ("mtp-m-Q4_K_M.gguf", 5),
            ("mtp-m-Q4_K.gguf", 9),
        ]);
        check(&alike, "Q4_K", Some(("mtp-m-Q4_K.gguf", 9)));
    }

    #[test]
    fn a_missing_part_is_named() {
        let name: ModelName = "a/b".parse().unwrap();
        let broken = variants(&files(&[
            ("m-Q8_0-00001-of-00003.gguf", 1),
            ("m-Q8_0-00003-of-00003.gguf", 1),
        ]));
        let error = choose(&broken, &name, None).unwrap_err().to_string();
        assert!(error.ends_with("m-Q8_0-00002-of-00003.gguf"), "{error}");
        assert!(matches!(
            choose(&[], &name, None),
            Err(HubError::NothingToOpen { .. })
        ));
    }

    #[test]
    fn of_several_projectors_one_in_16_bits_is_taken() {
        let there = files(&[
            ("mmproj-BF16.gguf", 1),
            ("mmproj-F16.gguf", 1),
            ("mmproj-F32.gguf", 1),
        ]);
        assert_eq!(projector(&there).as_deref(), Some("mmproj-F16.gguf"));
        assert_eq!(projector(&files(&[("m.gguf", 1)])), None);
    }
}
