//! [`EngineArgs`]: the options of the engine as arguments of the parser, made from their rows.
//!
//! The rows are in the library, which knows no parser. Invariant: an option is the same in every command that
//! takes it.

use std::ops::Deref;

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches,
    builder::{PossibleValue, PossibleValuesParser, ValueParser},
    error::ErrorKind,
};
use tokenmill::load::{EngineOption, KvType, OptionGroup, Values};

use crate::{help::ADVANCED, type_names::preset};

/// Holds the given options of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineArgs<G>(pub(crate) G);

impl<G> Deref for EngineArgs<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.0
    }
}

impl<G: OptionGroup> Args for EngineArgs<G> {
    fn augment_args(command: Command) -> Command {
        command.args(G::OPTIONS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<G: OptionGroup> FromArgMatches for EngineArgs<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut group = G::default();
        for option in G::OPTIONS {
            for value in matches.get_raw(option.id).into_iter().flatten() {
                (option.read)(&mut group, &value.to_string_lossy())
                    .map_err(|reason| Error::raw(ErrorKind::ValueValidation, reason))?;
            }
        }
        Ok(Self(group))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Makes an argument of an option.
fn argument<G: OptionGroup>(option: &'static EngineOption<G>) -> Arg {
    let look = &option.look;
    let letters = look.letters.map(|letters| format!(" [short: {letters}]"));
    let arg = Arg::new(option.id)
        .long(option.name)
        .short(look.letter)
        .help(format!("{}{}", option.help.trim(), letters.unwrap_or_default()))
        .help_heading(if look.is_advanced { ADVANCED } else { G::HEADING })
        .conflicts_with_all(look.conflicts.iter().copied());
    let arg = look.alias.into_iter().fold(arg, Arg::alias);
    let Some(value) = look.value else {
        return arg.action(ArgAction::SetTrue);
    };
    let read = option.read;
    let parser = match look.values {
        Values::Read => ValueParser::new(move |text: &str| read(&mut G::default(), text)),
        Values::Range(first, last) => ValueParser::new(clap::value_parser!(i64).range(first..=last)),
        Values::KvTypes => ValueParser::new(kv_type()),
        Values::Presets => ValueParser::new(preset()),
    };
    arg.value_name(value)
        .value_parser(parser)
        .default_value(look.default)
        .hide_possible_values(look.values == Values::Presets)
}

/// Takes the names of the types that keys and values can be stored in.
fn kv_type() -> PossibleValuesParser {
    let help = |ty| match ty {
        KvType::F32 => "32-bit floats",
        KvType::F16 => "16-bit floats",
        KvType::Q8_0 => "8 bits with a scale for each 32",
        KvType::E4M3 => {
            "8-bit floats up to 448 without a scale, as vLLM's fp8; on a GPU for both keys and values"
        }
        KvType::Q4_0 => "4 bits with a scale for each 32; heads are rotated first",
    };
    PossibleValuesParser::new(
        KvType::ALL.map(|ty| PossibleValue::new(ty.name()).aliases(ty.aliases()).help(help(ty))),
    )
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use tokenmill::load::engine_options;

    /// The newest option of the engine and the file of its row. The recipe of CONTRIBUTING promises one file besides the reader's.
    const NEWEST: (&str, &str) = ("steps-in-flight", "tokenmill/src/load_options.rs");

    /// Lists the files below a folder whose product code says one of the words.
    fn files_that_say(folder: &Path, words: &[String], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                files_that_say(&path, words, found);
                continue;
            }
            let text = fs::read(&path).expect("a source can be read");
            let text = String::from_utf8_lossy(&text);
            let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            if words.iter().any(|word| product.contains(word.as_str())) {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_newest_option_stands_in_one_file() {
        let (name, expected) = NEWEST;
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let words = [name.to_owned(), name.replace('-', "_")];
        let mut found = Vec::new();
        for source in ["cli/src", "server/src", "tokenmill/src"] {
            files_that_say(&crates.join(source), &words, &mut found);
        }
        assert_eq!(found, [crates.join(expected)], "an option is a row of the table");
        assert!(engine_options().any(|(listed, _)| listed == name));
    }
}
