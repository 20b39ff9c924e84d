//! [`FoundModel`]: a model to serve with others, and [`NamedLoader`], which loads it.
//!
//! Invariant: clients learn why a model cannot be loaded, but not the folders of this machine, which are in
//! the log.

use std::{
    path::{MAIN_SEPARATOR, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokenmill::{LoadOptions, Model};
use tokenmill_server::{
    ModelLoader, ModelSpec,
    models::{FileLoader, Measured, Role},
};

use super::{budget::keep_within, models_folder::stamps_of};
use crate::{
    failure::Failure,
    load::{about_cut_context, about_long_context},
    model_name::{FetchArgs, variants},
    output,
};

/// A model of the command line or of a folder, before it has its last name.
pub(super) struct FoundModel {
    pub(super) name: String,
    /// As it was written.
    pub(super) given: PathBuf,
    pub(super) path: PathBuf,
    pub(super) options: LoadOptions,
    pub(super) role: Role,
    pub(super) is_preloaded: bool,
    pub(super) is_of_folder: bool,
}

impl FoundModel {
    /// Returns its loader, which keeps to the budget.
    pub(super) fn loader(&self, fetch: &FetchArgs, budget: Option<u64>) -> NamedLoader {
        let (name, path, options) = (self.name.clone(), self.path.clone(), self.options.clone());
        NamedLoader::new(name, path, fetch.clone(), options, budget)
    }

    /// How it is loaded.
    pub(super) fn spec(self, fetch: &FetchArgs, budget: Option<u64>) -> ModelSpec {
        let variants = variants(&self.given, &self.path);
        let stamps = if self.is_of_folder {
            stamps_of(&self.path)
        } else {
            Vec::new()
        };
        let loader = self.loader(fetch, budget);
        let mut spec = ModelSpec::new(self.name, loader);
        spec.given = Some(self.given.display().to_string());
        spec.variants = variants;
        spec.role = self.role;
        spec.is_preloaded = self.is_preloaded;
        spec.is_of_folder = self.is_of_folder;
        spec.stamps = stamps;
        spec
    }
}

/// Loads the model that MODEL names, if it is on this machine.
#[derive(Debug)]
pub(super) struct NamedLoader {
    /// The name of the model in the log.
    name: String,
    model: PathBuf,
    fetch: FetchArgs,
    options: LoadOptions,
    /// The memory budget of all models, in bytes.
    budget: Option<u64>,
    /// The last message in the log: it is not repeated until another one follows.
    said: Mutex<Option<String>>,
}

impl NamedLoader {
    pub(super) fn new(
        name: String,
        model: PathBuf,
        fetch: FetchArgs,
        options: LoadOptions,
        budget: Option<u64>,
    ) -> Self {
        Self {
            name,
            model,
            fetch,
            options,
            budget,
            said: Mutex::new(None),
        }
    }

    fn said(&self) -> MutexGuard<'_, Option<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns the operator, unless that was the last thing that was said.
    fn warn(&self, warning: String) {
        let mut said = self.said();
        if said.as_ref() != Some(&warning) {
            tracing::warn!(model = self.name, "{warning}");
            *said = Some(warning);
        }
    }

    /// Warns the operator of a model that is here and takes more than the budget.
    pub(super) fn warn_of_budget(&self) {
        if let Some(failure) = self.over_budget() {
            self.warn(without_prefix(&failure.line()).to_owned());
        }
    }

    /// Returns why the budget has no room for the model, if it is here and that is so.
    pub(super) fn over_budget(&self) -> Option<Failure> {
        self.kept_file().ok()?.1
    }

    fn file(&self) -> Result<FileLoader, Failure> {
        Ok(self.kept_file()?.0)
    }

    /// Returns the file with the contexts that the budget has room for, and the reason if it has room for none: then the server refuses the
    /// model by what it measures.
    fn kept_file(&self) -> Result<(FileLoader, Option<Failure>), Failure> {
        let mut options = self.options.clone();
        if let Some(draft) = &mut options.draft {
            *draft = self.fetch.stored(draft)?;
        }
        let path = self.fetch.stored(&self.model)?;
        let kept = self
            .budget
            .map(|n_bytes| keep_within(&self.name, &path, &mut options, n_bytes));
        Ok((FileLoader { path, options }, kept.and_then(Result::err)))
    }

    /// Why it cannot be loaded, for clients: without hints for the operator and without the folders of this machine, which are in the log.
    fn reason(&self, failure: &Failure) -> String {
        let line = failure.line();
        self.warn(format!("cannot be loaded: {}", without_prefix(&line)));
        let named = (self.model.clone(), self.options.clone());
        let (model, options) = self.file().map_or(named, |file| (file.path, file.options));
        let mut paths = output::files_of(&options);
        paths.push(model);
        without_folders(failure.message_line(), &paths)
    }
}

/// A failure's line in a warning.
fn without_prefix(line: &str) -> &str {
    line.strip_prefix("error: ").unwrap_or(line)
}

/// A text in which paths are their last part alone.
pub(super) fn without_folders(text: String, paths: &[PathBuf]) -> String {
    let folders = paths.iter().filter_map(|path| path.parent());
    let folders = folders.filter(|folder| folder.components().next().is_some());
    folders.fold(text, |text, folder| {
        text.replace(&format!("{}{MAIN_SEPARATOR}", folder.display()), "")
    })
}

impl ModelLoader for NamedLoader {
    fn measure(&self) -> Result<Measured, String> {
        let measured = self.file().and_then(|file| Ok(file.try_measure()?));
        measured.map_err(|failure| self.reason(&failure))
    }

    fn load(&self, is_quiet: bool) -> Result<Model, String> {
        let loaded = self.file().and_then(|file| Ok(file.try_load(is_quiet)?));
        let model = loaded.map_err(|failure| self.reason(&failure))?;
        let warnings = warnings_of(&model, self.options.n_ctx);
        if warnings.is_empty() {
            // A failure that occurs again is logged again.
            *self.said() = None;
        } else {
            self.warn(warnings.join("; "));
        }
        Ok(model)
    }
}

/// Returns the warnings about a loaded model that was given a context of `asked` tokens.
fn warnings_of(model: &Model, asked: Option<usize>) -> Vec<String> {
    let cut = about_cut_context(asked, model.n_ctx());
    let n_ctx_train = model.facts().map(|facts| facts.n_ctx_train);
    let long = n_ctx_train.and_then(|n_ctx_train| about_long_context(model.n_ctx(), n_ctx_train));
    let template = model.words().template_error();
    let template = template.map(|error| format!("its chat template cannot be used: {error}"));
    cut.into_iter().chain(long).chain(template).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn clients_are_told_of_files_and_not_of_folders() {
        let paths = ["/home/me/a.gguf", "models/b.gguf", "c.gguf"].map(PathBuf::from);
        let text = "cannot read /home/me/a.gguf, models/b.gguf, c.gguf: 1/2".to_owned();
        assert_eq!(
            without_folders(text, &paths),
            "cannot read a.gguf, b.gguf, c.gguf: 1/2"
        );
    }

    #[test]
    fn a_failure_that_comes_back_is_said_again() {
        const DEMO: &[u8] = include_bytes!("../../../../tokenmill/assets/tokenmill-demo-Q8_0.gguf");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.gguf");
        let options = Model::options().threads(1);
        let loader = NamedLoader::new("a".to_owned(), path.clone(), FetchArgs::default(), options, None);
        for _ in 0..2 {
            fs::write(&path, &DEMO[..1000]).expect("a file");
            assert!(loader.load(false).is_err());
            assert!(loader.said().is_some(), "it is warned of");
            fs::write(&path, DEMO).expect("a file");
            assert!(loader.load(false).is_ok());
            assert_eq!(*loader.said(), None);
        }
    }
}
