//! [`SpeculationArgs`]: the options of speculative decoding.
//!
//! Every command that generates takes them. Invariant: none of them changes an answer.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, builder::RangedI64ValueParser};
use tokenmill::{LoadOptions, speculation::Speculation};
use tokenmill_sched::MAX_DRAFT;

use crate::{failure::Failure, help::ADVANCED, model_name::FetchArgs};

/// Whether tokens are drafted.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Draft tokens and verify them in one step; the answer does not change
    #[arg(long, value_enum, default_value_t = Drafter::Auto, value_name = "KIND")]
    spec: Drafter,
    /// Most tokens of one draft
    ///
    /// [default: 16]
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = spec_max())]
    spec_max: Option<u32>,
    /// Draft model: a smaller model with the same vocabulary, given like MODEL [short: -md]
    #[arg(long, alias = "model-draft", value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// A GGUF file with the model's MTP layer [default: the model's own file, else a fitting mtp-*.gguf next to it]
    #[arg(long, help_heading = ADVANCED, value_name = "FILE", conflicts_with = "draft")]
    mtp: Option<PathBuf>,
}

/// Takes the length of a draft.
pub(crate) fn spec_max() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=MAX_DRAFT as i64)
}

/// The source of drafts.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drafter {
    /// Any of `ngram`, `draft` and `mtp`, where their drafts are likely to be right and the measured times
    /// show a gain.
    Auto,
    /// No drafts.
    Off,
    /// The tokens that followed an earlier occurrence of the newest ones in the prompt or answer.
    Ngram,
    /// The draft model of `--draft`, while its tokens are likely to be right.
    Draft,
    /// The model's MTP layer (`nextn` in its file, or the file of `--mtp`), while its tokens are likely to be right.
    Mtp,
}

impl Drafter {
    /// Its name among the values of the option.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Ngram => "ngram",
            Self::Draft => "draft",
            Self::Mtp => "mtp",
        }
    }
}

impl SpeculationArgs {
    /// Selects one of several kinds for a comparison. The options of drafts apply only to kinds that make
    /// drafts, and the model only to kinds that ask one.
    pub(crate) fn of_list(spec: Drafter, spec_max: Option<u32>, draft: Option<&Path>) -> Self {
        let asks_model = matches!(spec, Drafter::Auto | Drafter::Draft);
        Self {
            spec,
            spec_max: spec_max.filter(|_| spec != Drafter::Off),
            draft: draft.filter(|_| asks_model).map(Path::to_owned),
            mtp: None,
        }
    }

    /// Adds these options to those of a load. A draft model that is named is fetched as the model is.
    ///
    /// # Errors
    /// A length or a model of drafts that are switched off, and a missing draft model.
    pub(crate) fn add_to(&self, options: &mut LoadOptions, fetch: &FetchArgs) -> Result<(), Failure> {
        self.add_unresolved(options)?;
        if let Some(draft) = &mut options.draft {
            *draft = fetch.resolve(draft)?;
        }
        Ok(())
    }

    /// Does the same as [`Self::add_to`], but leaves the draft model unresolved, so it may be missing.
    ///
    /// # Errors
    /// Fails if a length or a model is given for drafts that are switched off.
    pub(crate) fn add_unresolved(&self, options: &mut LoadOptions) -> Result<(), Failure> {
        options.speculation = self.speculation()?;
        options.draft = match &self.draft {
            None => None,
            Some(model) if is_number(model) => {
                let number = model.display();
                return Err(Failure::usage(format!("`--draft {number}` names no model"))
                    .hint(format!("`--spec-max {number}` sets the most tokens of one draft")));
            }
            Some(model) => Some(model.clone()),
        };
        options.mtp.clone_from(&self.mtp);
        Ok(())
    }

    /// Whether a draft model is named.
    pub(crate) fn names_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Whether the model's own MTP layer would make drafts, and has to be found.
    pub(crate) fn asks_own_layer(&self) -> bool {
        matches!(self.spec, Drafter::Auto | Drafter::Mtp) && self.draft.is_none() && self.mtp.is_none()
    }

    /// Whether the file of an MTP layer is named.
    pub(crate) fn names_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    /// Takes a draft model that is a relative path as relative to a folder.
    pub(crate) fn move_below(&mut self, folder: &Path) {
        if let Some(draft) = &mut self.draft {
            *draft = FetchArgs::below(folder, draft);
        }
    }

    /// Takes the file of an MTP layer as relative to a folder.
    pub(crate) fn move_mtp_below(&mut self, folder: &Path) {
        if let Some(mtp) = &mut self.mtp {
            *mtp = folder.join(&mtp);
        }
    }

    /// Whether tokens are drafted.
    ///
    /// # Errors
    /// A length or a model of drafts that are switched off.
    fn speculation(&self) -> Result<Speculation, Failure> {
        let max_draft = (self.spec_max).map_or(Speculation::DEFAULT_MAX_DRAFT, |n_tokens| n_tokens as usize);
        if self.mtp.is_some()
            && let Some(kind) = match self.spec {
                Drafter::Off => Some("off"),
                Drafter::Ngram => Some("ngram"),
                Drafter::Draft => Some("draft"),
                Drafter::Auto | Drafter::Mtp => None,
            }
        {
            let message = format!("`--mtp` does nothing with `--spec {kind}`");
            return Err(
                Failure::usage(message).hint("use `--spec mtp`, or `--spec auto` for the likelier source")
            );
        }
        match (self.spec, &self.draft) {
            (Drafter::Off, _) if self.spec_max.is_some() => {
                Err(Failure::usage("`--spec-max` does nothing with `--spec off`"))
            }
            (Drafter::Off, Some(_)) => Err(Failure::usage("`--draft` does nothing with `--spec off`")),
            (Drafter::Ngram, Some(_)) => Err(Failure::usage("`--draft` does nothing with `--spec ngram`")
                .hint("use `--spec draft`, or `--spec auto` for the likelier source")),
            (Drafter::Mtp, Some(_)) => Err(Failure::usage("`--draft` does nothing with `--spec mtp`")
                .hint("use `--spec draft`, or leave `--draft` out")),
            (Drafter::Draft, None) => {
                Err(Failure::usage("`--spec draft` needs a draft model").hint("name it with --draft MODEL"))
            }
            (Drafter::Off, None) => Ok(Speculation::Off),
            (Drafter::Auto, _) => Ok(Speculation::Auto { max_draft }),
            (Drafter::Ngram, None) => Ok(Speculation::Ngram { max_draft }),
            (Drafter::Draft, Some(_)) => Ok(Speculation::Draft { max_draft }),
            (Drafter::Mtp, None) => Ok(Speculation::Mtp { max_draft }),
        }
    }
}

/// Whether the value in place of a model is a number, as for llama.cpp's option of this name, and not a file.
fn is_number(model: &std::path::Path) -> bool {
    let text = model.to_str().unwrap_or_default();
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !model.exists()
}
