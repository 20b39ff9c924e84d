//! [`ModelSpec`]: a model that a server can load, and [`ModelLoader`], which loads it.
//!
//! The program decides which models exist and how they are loaded. Invariant: nothing here is loaded.

use std::{fmt, path::PathBuf, sync::Arc, time::SystemTime};

use tokenmill::{
    Error, LoadOptions, Model,
    load::{ModelFacts, ModelSource},
    machine::at_low_priority,
};

use super::{KeepAlive, lookup::Rules};

/// The kind of model that a request without a model name selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It generates text.
    #[default]
    Chat,
    /// It makes vectors of texts.
    Embedding,
    /// It says how well documents answer a query.
    Rank,
    /// It was trained for decisions; where none was, one for chats makes them.
    Decision,
}

/// Facts about a model before it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes that it will take.
    pub n_bytes: u64,
    /// The facts in its files.
    pub facts: Option<ModelFacts>,
    /// Whether it takes images, as far as is known before it is loaded.
    pub sees: bool,
    /// Whether it has a chat template, or one was given for it; `None` where the loader cannot say. A base model has none.
    pub has_chat_template: Option<bool>,
}

/// Weighs and loads one model, any number of times. The calls come from a thread of their own, one at a time.
///
/// The server notes a failure at the level `info`, in the words that clients get. A loader warns the operator itself, and can say more there.
pub trait ModelLoader: fmt::Debug + Send + Sync {
    /// Returns the memory that the model will take and its facts; reads only headers.
    ///
    /// # Errors
    /// Why it cannot be loaded, for the operator and the client.
    fn measure(&self) -> Result<Measured, String>;

    /// Loads it. A load that is quiet leaves the processors to the models that answer requests meanwhile, and takes longer.
    ///
    /// # Errors
    /// Why not.
    fn load(&self, is_quiet: bool) -> Result<Model, String>;
}

/// When a file was written last, and how long it is: a file with another stamp is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// `None` where the file system does not say.
    pub written: Option<SystemTime>,
    /// The file's length.
    pub n_bytes: u64,
    /// The file's number on its disk, where the system says it: one that was moved into its place has another.
    pub inode: Option<u64>,
}

/// A model that a server can load.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The names that requests call it by; responses carry the first.
    pub names: Vec<String>,
    /// The name given when the server was started, if it is not one of its names; requests may use it too.
    pub given: Option<String>,
    /// The adapters that are loaded with it, which requests may name too.
    pub adapters: Vec<String>,
    /// Suffixes that tell it apart in its repository of the Hub, such as `Q4_K_M` or its file's name;
    /// requests may append one to a name.
    pub variants: Vec<String>,
    /// Whether it comes from the folder that is read again; it is served as long as it is there.
    pub is_of_folder: bool,
    /// Stamps of its files, where it is a model of that folder. Facts read earlier and failures hold as long
    /// as the stamps stay the same.
    pub stamps: Vec<FileStamp>,
    /// The role of the model. A model for chats takes the role in its files, once they were read.
    pub role: Role,
    /// Whether it is loaded at the start and stays.
    pub is_pinned: bool,
    /// Whether it is loaded at the start where it fits next to the others.
    pub is_preloaded: bool,
    /// How long it stays loaded without requests, where that is not the server's time.
    pub keep_alive: Option<KeepAlive>,
    /// How it is loaded.
    pub loader: Arc<dyn ModelLoader>,
}

impl ModelSpec {
    /// A model for chats under one name, loaded when it is requested.
    pub fn new(name: impl Into<String>, loader: impl ModelLoader + 'static) -> Self {
        Self {
            names: vec![name.into()],
            given: None,
            adapters: Vec::new(),
            variants: Vec::new(),
            is_of_folder: false,
            stamps: Vec::new(),
            role: Role::Chat,
            is_pinned: false,
            is_preloaded: false,
            keep_alive: None,
            loader: Arc::new(loader),
        }
    }

    /// Returns the rules for the model; `keep_alive` holds where it has no time of its own.
    pub(super) fn rules(&self, keep_alive: KeepAlive) -> Rules {
        Rules {
            name: self.name().to_owned(),
            is_pinned: self.is_pinned,
            keep_alive: self.keep_alive.unwrap_or(keep_alive),
        }
    }

    /// The name that responses carry.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// Loads the model at a path with options, each time again.
#[derive(Clone, Debug)]
pub struct FileLoader {
    /// A GGUF file, a folder with one, a Hugging Face folder, or `demo`.
    pub path: PathBuf,
    /// How it is loaded.
    pub options: LoadOptions,
}

impl FileLoader {
    /// As [`ModelLoader::measure`].
    ///
    /// # Errors
    /// Fails if a file or an option is invalid.
    pub fn try_measure(&self) -> Result<Measured, Error> {
        at_low_priority(|| {
            let source = ModelSource::find(&self.path)?;
            source.check()?;
            let network = self.options.open_network(&source)?;
            Ok(Measured {
                n_bytes: self.options.needed_bytes(&source, &network)?,
                facts: Some(ModelFacts::of(&network)),
                sees: self.options.sees(&source, &network)?,
                has_chat_template: Some(
                    self.options.chat_template.is_some() || source.chat_template(network.gguf())?.is_some(),
                ),
            })
        })
    }

    /// As [`ModelLoader::load`].
    ///
    /// # Errors
    /// As [`LoadOptions::load`].
    pub fn try_load(&self, is_quiet: bool) -> Result<Model, Error> {
        let mut options = self.options.clone();
        options.compute.is_quiet = is_quiet;
        options.load(&self.path)
    }
}

impl ModelLoader for FileLoader {
    fn measure(&self) -> Result<Measured, String> {
        self.try_measure().map_err(|error| error.to_string())
    }

    fn load(&self, is_quiet: bool) -> Result<Model, String> {
        self.try_load(is_quiet).map_err(|error| {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the model cannot be loaded");
            error.to_string()
        })
    }
}
