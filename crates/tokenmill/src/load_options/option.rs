//! [`EngineOption`]: an option of the engine, and the macros of its tables. A row has the option's help, its
//! name, its [`Look`], the reader of its value, and the field of [`LoadOptions`](super::LoadOptions) that it
//! sets.
//!
//! The rows are in `load_options.rs` and `load_flags.rs`. Invariant: the command line, TOML files of models,
//! hints and answers to flags of other programs take everything about an option from its row.

use std::{fmt::Display, str::FromStr};

use super::{LimitFlags, load_flags::LoadFlags};

/// Describes an option of the group `G`.
pub struct EngineOption<G: 'static> {
    /// Identifies the option: the name of its field in the group.
    pub id: &'static str,
    /// Names it on the command line, after `--`, and in files of models.
    pub name: &'static str,
    /// Describes it.
    pub help: &'static str,
    /// Says how it is written.
    pub look: Look,
    /// Reads a value into the group; a wrong one gives the reason.
    pub read: fn(&mut G, &str) -> Result<(), String>,
}

/// Lists the options of a group, which has a field for the value of each.
pub trait OptionGroup: Default + 'static {
    /// Heads them in a help text.
    const HEADING: &'static str;
    /// Lists them in the order of a help text.
    const OPTIONS: &'static [EngineOption<Self>];

    /// Returns the values of options that are not given.
    fn by_default() -> Self {
        let mut group = Self::default();
        for option in Self::OPTIONS {
            if let Some(text) = option.look.default {
                (option.read)(&mut group, text).expect("the default of an option is one of its values");
            }
        }
        group
    }
}

/// Lists the options of the engine: their names and looks.
pub fn engine_options() -> impl Iterator<Item = (&'static str, &'static Look)> {
    fn of<G: OptionGroup>() -> impl Iterator<Item = (&'static str, &'static Look)> {
        G::OPTIONS.iter().map(|option| (option.name, &option.look))
    }
    of::<LoadFlags>().chain(of::<LimitFlags>())
}

/// Says how an option is written.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Stands for its value in a help text; `None` for a switch.
    pub value: Option<&'static str>,
    /// Narrows the allowed values.
    pub values: Values,
    /// Stands for it after one dash.
    pub letter: Option<char>,
    /// Stands for it, a dash and several letters.
    pub letters: Option<&'static str>,
    /// Names it otherwise.
    pub alias: Option<&'static str>,
    /// Is its value where none is given.
    pub default: Option<&'static str>,
    /// Says whether few need it.
    pub is_advanced: bool,
    /// Lists options that cannot be given with it, by `id`.
    pub conflicts: &'static [&'static str],
    /// Its names in other programs: the program, its flags, and the replacement here.
    pub elsewhere: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Names it in hints: the place in their texts, the flag, and the name in Rust.
    pub hints: &'static [(&'static str, &'static str, &'static str)],
}

/// The values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any value that the reader takes.
    Read,
    /// Whole numbers from the first to the last.
    Range(i64, i64),
    /// The types of keys and values.
    KvTypes,
    /// The types of files that `quantize` makes.
    Presets,
}

impl Look {
    /// Says that few need it.
    pub(super) const fn advanced(mut self) -> Self {
        self.is_advanced = true;
        self
    }
}

/// The look of a switch.
pub(super) const SWITCH: Look = Look {
    value: None,
    values: Values::Read,
    letter: None,
    letters: None,
    alias: None,
    default: None,
    is_advanced: false,
    conflicts: &[],
    elsewhere: &[],
    hints: &[],
};

/// The look of a value that the reader takes.
pub(super) const fn value(name: &'static str) -> Look {
    Look {
        value: Some(name),
        ..SWITCH
    }
}

/// The look of a number in a range.
pub(super) const fn number(first: i64, last: i64) -> Look {
    Look {
        values: Values::Range(first, last),
        ..value("N")
    }
}

/// Reads a value by its type.
pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads a number of things, which may be 0.
///
/// # Errors
/// Returns a text that names the expected form.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "expected a whole number, 0 or more".to_owned())
}

/// Reads a number of things, at least one.
///
/// # Errors
/// Returns a text that names the expected form.
pub fn positive(text: &str) -> Result<usize, String> {
    (text.parse().ok())
        .filter(|&n| n > 0)
        .ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

/// Makes a group of options of its rows: `/// help`, then `id "name": type { its look } = like, reader => its field;`.
macro_rules! option_group {
    (
        $(#[doc = $about:literal])*
        $group:ident $heading:literal {
            $(
                $(#[doc = $help:literal])*
                $id:ident $name:literal: $type:ty $({ $($look:tt)* })? = $like:expr, $read:expr $(=> $set:expr)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default)]
        pub struct $group {
            $($(#[doc = $help])* pub $id: Option<$type>,)*
        }

        impl OptionGroup for $group {
            const HEADING: &'static str = $heading;
            const OPTIONS: &'static [EngineOption<Self>] = &[
                $(EngineOption {
                    id: stringify!($id),
                    name: $name,
                    help: concat!($($help),*),
                    look: Look { $($($look)*,)? ..$like },
                    read: |group, text| {
                        group.$id = Some($read(text)?);
                        Ok(())
                    },
                },)*
            ];
        }

        impl $group {
            /// Sets the fields of a load that are the values of given options.
            pub fn add_to(self, options: &mut LoadOptions) {
                $($(
                    if let Some(value) = self.$id {
                        let set: fn(&mut LoadOptions, $type) = $set;
                        set(options, value);
                    }
                )?)*
            }
        }
    };
}

/// Makes [`LoadOptions`](super::LoadOptions) of fields with their defaults, and a group of options, of which those below `engine` are
/// fields of both and of [`EngineConfig`](tokenmill_sched::EngineConfig).
macro_rules! load_options {
    (
        $(#[doc = $about:literal])*
        pub struct $options:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr,)*
        }
        $(#[doc = $of_group:literal])*
        $group:ident $heading:literal { $($row:tt)* }
        engine {
            $(
                $(#[doc = $help:literal])*
                $id:ident $name:literal: $value:ty as $engine:ty $({ $($look:tt)* })? = $like:expr, $read:expr;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $options {
            $($(#[doc = $doc])* pub $field: $type,)*
            $($(#[doc = $help])* pub $id: $engine,)*
        }

        impl Default for $options {
            fn default() -> Self {
                let engine = EngineConfig::default();
                Self {
                    $($field: $default,)*
                    $($id: engine.$id,)*
                }
            }
        }

        impl $options {
            /// Configures an engine by the options that are its own.
            fn engine_config(&self) -> EngineConfig {
                EngineConfig {
                    $($id: self.$id,)*
                    ..EngineConfig::default()
                }
            }
        }

        option_group! {
            $(#[doc = $of_group])*
            $group $heading {
                $($row)*
                $(
                    $(#[doc = $help])*
                    $id $name: $value $({ $($look)* })? = $like, $read => |options, value| options.$id = value.into();
                )*
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokenmill_sched::EngineConfig;

    use super::*;
    use crate::LoadOptions;

    #[test]
    fn names_stand_once_and_defaults_are_values() {
        let mut seen = HashSet::new();
        for (name, look) in engine_options() {
            for name in [Some(name), look.alias, look.letters].into_iter().flatten() {
                assert!(seen.insert(name), "{name} stands twice");
            }
        }
        let mut options = LoadOptions::default();
        LoadFlags::by_default().add_to(&mut options);
        LimitFlags::by_default().add_to(&mut options);
        assert_eq!((options.n_seqs, options.max_queued), (16, 256));
        assert_eq!(options.kv_value_type, Some(options.kv_type));
    }

    #[test]
    fn nothing_is_no_positive_number() {
        assert_eq!([count("0"), positive("1")], [Ok(0), Ok(1)]);
        assert!(positive("0").is_err());
    }

    #[test]
    fn an_option_of_the_engine_reaches_its_configuration() {
        let mut flags = LimitFlags::default();
        for (name, text) in [("max-queued-requests", "3"), ("max-stall-percent", "10")] {
            let option = LimitFlags::OPTIONS.iter().find(|option| option.name == name);
            (option.expect("a row").read)(&mut flags, text).expect("a number");
        }
        let mut options = LoadOptions::default();
        flags.add_to(&mut options);
        let (config, default) = (options.engine_config(), EngineConfig::default());
        assert_eq!((config.max_queued, config.max_stall_percent), (3, 10));
        assert_eq!(config.max_queued_tokens, default.max_queued_tokens);
    }
}
