//! [`ModelFlags`]: the options that may differ from model to model, and [`GivenFlags`], which of them were
//! given.
//!
//! A TOML file of models sets them by the same names. Invariant: the parser of the command line reads a
//! setting of a file, so that both accept and refuse the same.

use std::{ffi::OsString, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use tokenmill::{LoadOptions, load::LimitFlags};

use super::seats::Seats;
use crate::{
    adapters::AdapterArgs, context_shift::ContextShiftArgs, engine_args::EngineArgs, failure::Failure,
    load::LoadArgs, speculation::SpeculationArgs, template::TemplateArgs, vision::VisionArgs,
};

/// The options of a model.
#[derive(Args, Debug, Clone)]
pub(super) struct ModelFlags {
    #[command(flatten)]
    pub(super) limits: EngineArgs<LimitFlags>,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) vision: VisionArgs,
    #[command(flatten)]
    pub(super) context_shift: ContextShiftArgs,
    #[command(flatten)]
    pub(super) template: TemplateArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
}

impl ModelFlags {
    /// How many requests the model serves at once.
    pub(super) fn seats(&self) -> Seats<'_> {
        Seats {
            limits: self.limits.0.clone(),
            max_page_event_batches: None,
            prefix_folder: None,
            speculation: &self.speculation,
            context_shift: Some(&self.context_shift),
        }
    }

    /// The options of its load.
    ///
    /// # Errors
    /// Options that cannot be granted.
    pub(super) fn load_options(&self) -> Result<LoadOptions, Failure> {
        let mut options = self.unresolved_options()?;
        self.speculation.add_to(&mut options, &self.load.fetch)?;
        Ok(options)
    }

    /// Returns the options of its load, with the draft model unresolved, so it may be missing.
    ///
    /// # Errors
    /// Fails on options that cannot be granted.
    pub(super) fn unresolved_options(&self) -> Result<LoadOptions, Failure> {
        let mut options = self.load.options()?;
        self.seats().add_unresolved(&mut options)?;
        self.adapters.add_to(&mut options);
        options.projector = self.vision.projector();
        self.template.add_to(&mut options)?;
        Ok(options)
    }
}

/// A setting of a file: its name and its values. A switch has the value `true` or `false`.
pub(super) type Setting = (String, Vec<OsString>);

/// The options of the command line, and which of them were given.
#[derive(Debug, Clone)]
pub(super) struct GivenFlags {
    pub(super) flags: ModelFlags,
    given: Vec<Setting>,
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let given = |arg: &Arg| {
            let id = arg.get_id().as_str();
            let values = matches.get_raw(id).unwrap_or_default().map(ToOwned::to_owned);
            Some((arg.get_long()?.to_owned(), values.collect())).filter(|_| is_given(id))
        };
        Ok(Self {
            flags: ModelFlags::from_arg_matches(matches)?,
            given: command().get_arguments().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        ModelFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ModelFlags::augment_args_for_update(command)
    }
}

fn command() -> Command {
    ModelFlags::augment_args(Command::new("settings").no_binary_name(true))
}

/// The option of a setting, by its long name or another name of it; underscores stand for hyphens.
fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let name = name.replace('_', "-");
    command.get_arguments().find(|arg| {
        let others = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(&name) || others.contains(&name.as_str())
    })
}

/// The names of all settings.
pub(super) fn setting_names() -> Vec<String> {
    let command = command();
    let names = command
        .get_arguments()
        .filter_map(Arg::get_long)
        .map(str::to_owned);
    names.collect()
}

/// Whether there is a setting of this name.
pub(super) fn is_setting(name: &str) -> bool {
    option_of(&command(), name).is_some()
}

impl GivenFlags {
    /// As [`Self::with`], for the settings of a file in `folder`, to which the paths in them are relative; those of the command line are
    /// not.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub(super) fn with_file(&self, settings: &[Setting], folder: &Path) -> Result<ModelFlags, String> {
        let mut flags = self.with(settings)?;
        let command = command();
        let sets = |option: &str| {
            settings
                .iter()
                .filter_map(|(name, _)| option_of(&command, name)?.get_long())
                .any(|long| long == option)
        };
        if sets("lora") {
            flags.adapters.move_adapters_below(folder);
        }
        if sets("control-vector") {
            flags.adapters.move_controls_below(folder);
        }
        if sets("mmproj") {
            flags.vision.move_below(folder);
        }
        if sets("template") {
            flags.template.move_below(folder);
        }
        if sets("draft") {
            flags.speculation.move_below(folder);
        }
        if sets("mtp") {
            flags.speculation.move_mtp_below(folder);
        }
        Ok(flags)
    }

    /// The options of a model with settings of its own: the later ones go before the earlier ones, and all before the command line.
    ///
    /// # Errors
    /// A value that the option does not take, in the parser's words.
    pub(super) fn with(&self, settings: &[Setting]) -> Result<ModelFlags, String> {
        let command = command();
        let mut chosen: Vec<(&Arg, &[OsString])> = Vec::new();
        for (name, values) in self.given.iter().chain(settings) {
            let arg = option_of(&command, name).ok_or_else(|| format!("unknown setting `{name}`"))?;
            chosen.retain(|(other, _)| other.get_id() != arg.get_id());
            chosen.push((arg, values));
        }
        let mut line: Vec<OsString> = Vec::new();
        for (arg, values) in chosen {
            let mut flag = OsString::from("--");
            flag.push(arg.get_long().unwrap_or_default());
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                match values {
                    [value] if value == "true" => line.push(flag),
                    [value] if value == "false" => {}
                    _ => return Err(format!("`{}` is either true or false", arg.get_id())),
                }
            } else if arg.get_num_args().is_some_and(|range| range.min_values() > 1) {
                line.push(flag);
                line.extend(values.iter().cloned());
            } else {
                for value in values {
                    let mut with_value = flag.clone();
                    with_value.push("=");
                    with_value.push(value);
                    line.push(with_value);
                }
            }
        }
        let matches = command.clone().try_get_matches_from(line);
        matches
            .and_then(|matches| ModelFlags::from_arg_matches(&matches))
            .map_err(|error| {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                first.strip_prefix("error: ").unwrap_or(first).to_owned()
            })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: GivenFlags,
    }

    fn setting(name: &str, values: &[&str]) -> Setting {
        (name.to_owned(), values.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_setting_goes_before_the_command_line_and_leaves_the_rest() {
        let line = Line::parse_from([
            "t",
            "-c",
            "64",
            "--max-num-seqs",
            "3",
            "--cpu-moe",
            "--cache-type-k",
            "q8_0",
        ]);
        let same = line.given.with(&[]).expect("the line itself is right");
        assert_eq!(same.load.n_ctx_given(), Some(64));
        assert_eq!(same.limits.max_num_seqs, Some(3));
        assert_eq!(format!("{same:?}"), format!("{:?}", line.given.flags));
        let other = (line.given)
            .with(&[
                setting("ctx_size", &["32"]),
                setting("parallel", &["5"]),
                setting("cpu-moe", &["false"]),
            ])
            .expect("the settings are right");
        assert_eq!(other.load.n_ctx_given(), Some(32));
        assert_eq!(other.limits.max_num_seqs, Some(5));
        assert_eq!(other.load.cache_types().0, tokenmill::load::KvType::Q8_0);
        assert!(format!("{:?}", other.load).contains("cpu_moe: Some(false)"));
    }

    #[test]
    fn a_row_of_the_engine_is_a_flag_a_setting_and_a_field() {
        let line = Line::parse_from(["t", "--steps-in-flight", "1"]);
        let steps = |settings: &[Setting]| {
            let flags = line.given.with(settings).expect("the settings are right");
            flags.load_options().expect("they are right").steps_in_flight
        };
        assert_eq!(steps(&[]), Some(1));
        assert_eq!(steps(&[setting("steps_in_flight", &["2"])]), Some(2));
        assert_eq!(Line::parse_from(["t"]).given.flags.limits.steps_in_flight, None);
    }

    #[test]
    fn a_list_is_the_option_given_again() {
        let line = Line::parse_from(["t"]);
        let flags = (line.given)
            .with(&[
                setting("lora", &["a=a.gguf", "b=b.gguf:0.5"]),
                setting("control-vector", &["v.gguf"]),
                setting("control-vector-layer-range", &["1", "4"]),
            ])
            .expect("the settings are right");
        assert_eq!(flags.adapters.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            flags.load_options().expect("they are right").control_layers,
            Some(1..=4)
        );
    }

    #[test]
    fn paths_of_a_file_are_relative_to_its_folder_and_others_are_not() {
        let line = Line::parse_from(["t", "--control-vector", "v.gguf", "--draft", "d.gguf"]);
        let paths = |settings: &[Setting]| {
            let flags = line.given.with_file(settings, Path::new("folder"));
            let options = flags
                .and_then(|flags| flags.unresolved_options().map_err(|failure| failure.line()))
                .expect("they are right");
            (
                options.adapters,
                options.control_vectors,
                options.draft,
                options.projector,
            )
        };
        let (_, controls, draft, _) = paths(&[]);
        assert_eq!(controls[0].0, Path::new("v.gguf"));
        assert_eq!(draft.as_deref(), Some(Path::new("d.gguf")));
        let (adapters, controls, draft, projector) = paths(&[
            setting("lora", &["a=a.gguf"]),
            setting("mmproj", &["m.gguf"]),
            setting("model-draft", &["e.gguf"]),
        ]);
        assert_eq!(adapters[0].path, Path::new("folder/a.gguf"));
        assert_eq!(controls[0].0, Path::new("v.gguf"));
        assert_eq!(draft.as_deref(), Some(Path::new("folder/e.gguf")));
        assert_eq!(
            projector,
            tokenmill::load::Projector::File("folder/m.gguf".into())
        );
        let (_, controls, draft, _) = paths(&[
            setting("control_vector", &["w.gguf"]),
            setting("draft", &["demo"]),
        ]);
        assert_eq!(controls[0].0, Path::new("folder/w.gguf"));
        assert_eq!(draft.as_deref(), Some(Path::new("demo")));
        let line = Line::parse_from(["t", "--mtp", "mtp-a.gguf"]);
        let mtp = |settings: &[Setting]| {
            let flags = line
                .given
                .with_file(settings, Path::new("folder"))
                .expect("it is right");
            flags
                .unresolved_options()
                .map_err(|failure| failure.line())
                .expect("it is right")
                .mtp
        };
        assert_eq!(mtp(&[]).as_deref(), Some(Path::new("mtp-a.gguf")));
        let of_file = mtp(&[setting("mtp", &["mtp-b.gguf"])]);
        assert_eq!(of_file.as_deref(), Some(Path::new("folder/mtp-b.gguf")));
    }

    #[test]
    fn a_wrong_value_is_refused_in_one_line() {
        let line = Line::parse_from(["t"]);
        for (name, value, expected) in [
            ("ctx-size", "many", "invalid value 'many'"),
            ("cache-type-k", "q9", "invalid value 'q9'"),
            ("cpu-moe", "1", "true or false"),
            ("nothing", "1", "unknown setting"),
        ] {
            let error = line.given.with(&[setting(name, &[value])]).expect_err(name);
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }
}
