//! [`Hint`]: what to do about an error, in one clause.
//!
//! A hint often names a setting, which is a flag for users of the program and a field for callers of this crate. The row of an option of
//! the engine has both names, or [`SETTINGS`], and the text of a hint has a place for each: `a smaller context, {context}`.

use std::fmt;

use crate::load_options::option::engine_options;

/// A setting that hints name: its place in their texts, the flag of the program, and the name in Rust.
type Setting = (&'static str, &'static str, &'static str);

/// The settings that hints name, besides those in the rows of options.
const SETTINGS: &[Setting] = &[
    ("adapter", "`--lora FILE`", "`LoadOptions::adapter`"),
    ("allow-partial", "--allow-partial-imatrix", "`allow_partial`"),
    (
        "allow-requantize",
        "--allow-requantize",
        "`Quantizer::allow_requantize`",
    ),
    (
        "context-shift",
        "`--context-shift`",
        "`LoadOptions::context_shift`",
    ),
    ("draft", "`--draft MODEL`", "`LoadOptions::draft`"),
    (
        "experts",
        "--cpu-moe, --n-cpu-moe and --place experts",
        "the places of experts in `PlacementRequest`",
    ),
    ("importance", "`--imatrix FILE`", "`Quantizer::importance`"),
    ("kv-types", "`-ctk q8_0 -ctv q8_0`", "`LoadOptions::kv_type`"),
    ("model", "MODEL", "a model"),
    ("mtp", "`--mtp FILE`", "`LoadOptions::mtp`"),
    ("offline", "`--offline`", "`HubSettings::is_offline`"),
    ("places", "`--cpu-range` and `--numa`", "`Compute::places`"),
    ("projector", "`--mmproj FILE`", "`LoadOptions::projector`"),
    ("run", "`run`", "`Model::open`"),
    ("spec-auto", "`--spec auto`", "`Speculation::Auto`"),
    ("spec-mtp", "`--spec mtp`", "`Speculation::Mtp`"),
    ("template", "--template", "`LoadOptions::chat_template`"),
    (
        "threads",
        "`-t N` and `-tb N`",
        "`Compute::n_threads` and `Compute::n_prefill_threads`",
    ),
    ("tokenize", "`tokenize`", "`ModelWords`"),
];

/// Finds the setting of a place.
fn setting_of(place: &str) -> Option<&'static Setting> {
    let of_options = engine_options().flat_map(|(_, look)| look.hints);
    (SETTINGS.iter().chain(of_options)).find(|(named, ..)| *named == place)
}

/// Advice about an error, in one clause.
///
/// As text it names the settings of this crate; [`Self::for_program`] names the flags of the program `tokenmill`.
///
/// ```
/// use tokenmill::Model;
///
/// let error = Model::open("./no-such-model.gguf").err().expect("there is no such file");
/// let hint = error.hint().expect("a hint");
/// assert!(hint.to_string().starts_with("a model is a .gguf file"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Hint {
    text: &'static str,
    /// The values of the places `{}`, in order.
    values: Vec<String>,
}

impl Hint {
    /// Makes a hint whose text has places for settings.
    pub(super) fn new(text: &'static str) -> Self {
        Self::with(text, [])
    }

    /// Makes a hint whose text also has places `{}` for these values.
    pub(super) fn with<const N: usize>(text: &'static str, values: [String; N]) -> Self {
        Self {
            text,
            values: values.into(),
        }
    }

    /// Returns the hint for users of the program `tokenmill`, with the names of its flags.
    pub fn for_program(&self) -> String {
        self.written(|setting| setting.1)
    }

    fn written(&self, name: impl Fn(&Setting) -> &'static str) -> String {
        let mut values = self.values.iter();
        let mut pieces = self.text.split('{');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (place, rest) = piece.split_once('}').expect("a place ends");
            match setting_of(place) {
                Some(setting) => text.push_str(name(setting)),
                None => text.push_str(values.next().expect("a value or a setting for each place")),
            }
            text.push_str(rest);
        }
        text
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written(|setting| setting.2))
    }
}

impl fmt::Debug for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hint({:?})", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_settings_for_each_reader() {
        let hint = Hint::with("`{}` fits with {context}", ["{context} x".to_owned()]);
        assert_eq!(hint.to_string(), "`{context} x` fits with `LoadOptions::context`");
        assert_eq!(hint.for_program(), "`{context} x` fits with `-c N`");
    }

    #[test]
    fn places_in_hints_are_settings() {
        let texts = [
            include_str!("mod.rs"),
            include_str!("of_files.rs"),
            include_str!("of_hub.rs"),
            include_str!("of_load.rs"),
        ];
        let mut n_places = 0;
        // Strings alone: after each first quotation mark of a pair.
        let product = texts.map(|text| text.split("#[cfg(test)]").next().expect("a part"));
        for text in product.iter().flat_map(|text| text.split('"').skip(1).step_by(2)) {
            for place in text.split('{').skip(1).filter_map(|piece| piece.split_once('}')) {
                let is_setting = setting_of(place.0).is_some();
                assert!(is_setting || place.0.is_empty(), "{{{}}} in {text:?}", place.0);
                n_places += 1;
            }
        }
        assert!(n_places > 50, "{n_places}");
    }

    #[test]
    fn settings_are_in_order_and_stand_once() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.0 < b.0));
        let of_options = engine_options().flat_map(|(_, look)| look.hints);
        let mut places: Vec<&str> = (SETTINGS.iter().chain(of_options))
            .map(|(place, ..)| *place)
            .collect();
        places.sort_unstable();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
    }
}
