//! Types of files and tensors as values of options, with names for shell completion.
//!
//! Several commands take them. Invariant: every listed name is accepted; the type itself parses other
//! accepted names, such as short ones.

use std::{ffi::OsStr, str::FromStr as _, sync::LazyLock};

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};
use tokenmill::convert::Preset;
use tokenmill_convert::OutType;
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;

/// Reads names, and lists them for completions and for the manual.
#[derive(Clone)]
struct Names<T: Clone> {
    read: fn(&str) -> Result<T, String>,
    listed: fn() -> Vec<PossibleValue>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Names<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        self.read.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.listed)().into_iter()))
    }
}

/// A type that `quantize` makes.
pub(crate) fn preset() -> impl TypedValueParser<Value = Preset> {
    Names {
        read: |name| Preset::from_str(name).map_err(|error| error.to_string()),
        listed: || listed_presets().collect(),
    }
}

/// A type that `convert` makes.
pub(crate) fn out_type() -> impl TypedValueParser<Value = OutType> {
    Names {
        read: |name| OutType::from_str(name).map_err(|error| error.to_string()),
        listed: || {
            let auto = PossibleValue::new("auto").help("the 16-bit type of the folder");
            [auto].into_iter().chain(listed_presets()).collect()
        },
    }
}

/// A type of a tensor.
pub(crate) fn tensor_type() -> impl TypedValueParser<Value = TensorType> {
    Names {
        read: read_tensor_type,
        listed: || {
            TENSOR_TYPES
                .iter()
                .map(|name| PossibleValue::new(name.as_str()))
                .collect()
        },
    }
}

/// Reads the name of a tensor type, in upper or lower case.
pub(crate) fn read_tensor_type(name: &str) -> Result<TensorType, String> {
    TensorType::from_name(name).ok_or_else(|| {
        let known = Format::all().iter().map(Format::name);
        format!(
            "`{name}` is not a tensor type; known are {}",
            known.collect::<Vec<_>>().join(", ")
        )
    })
}

/// The names in lower case, as the examples have them.
static PRESETS: LazyLock<Vec<(String, Preset)>> = LazyLock::new(|| {
    let presets = Preset::ALL.iter();
    presets
        .map(|&preset| (preset.name().to_lowercase(), preset))
        .collect()
});
static TENSOR_TYPES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let names = Format::all().iter().map(Format::name);
    names.map(str::to_lowercase).collect()
});

fn listed_presets() -> impl Iterator<Item = PossibleValue> {
    PRESETS
        .iter()
        .map(|(name, preset)| PossibleValue::new(name.as_str()).help(preset.about()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_read() {
        fn check<T>(parser: &impl TypedValueParser<Value = T>, least: usize) {
            let command = Command::new("tokenmill");
            let listed: Vec<PossibleValue> = parser.possible_values().expect("a list").collect();
            assert!(listed.len() >= least, "{}", listed.len());
            for value in listed {
                let name = value.get_name();
                assert!(
                    parser.parse_ref(&command, None, OsStr::new(name)).is_ok(),
                    "{name}"
                );
            }
            for wrong in ["", "q9"] {
                assert!(
                    parser.parse_ref(&command, None, OsStr::new(wrong)).is_err(),
                    "{wrong}"
                );
            }
        }
        check(&preset(), Preset::ALL.len());
        check(&out_type(), Preset::ALL.len() + 1);
        check(&tensor_type(), 20);
    }
}
