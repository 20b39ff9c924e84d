//! Adapters of a model: loaded by name, chosen by name for each request, unloaded while others run.
//!
//! Most models never have any. Invariant: a request that began with an adapter ends with it, whatever happens
//! to the name.

use std::sync::Arc;

use tokenmill_backend::AdapterId;

use crate::{
    Error, Model,
    adapters::{AdapterSource, LoadedAdapter},
};

impl Model {
    /// Loads an adapter. Requests can name it from then on:
    /// [`TextParams::adapter`](crate::TextParams::adapter). Running requests continue meanwhile.
    ///
    /// # Errors
    /// [`Error::AdapterName`] for a name that is taken or unusable, [`Error::TooManyAdapters`],
    /// [`Error::AdapterFile`] if its files are wrong, [`Error::Engine`] if it does not fit the model or the
    /// device.
    pub fn load_adapter(&self, source: &AdapterSource) -> Result<LoadedAdapter, Error> {
        let shelf = self.shelf();
        shelf.check_place(&source.name)?;
        let reader = shelf.reader.as_ref().ok_or(Error::NoAdapters)?;
        let adapter = reader.read(&source.path).map_err(|fault| Error::AdapterFile {
            name: source.name.clone(),
            source: fault,
        })?;
        let adapter = Arc::new(adapter);
        // While the files were read, another may have taken the name or the last place.
        let _changing = shelf.changing();
        shelf.check_place(&source.name)?;
        let id = self.engine().add_adapter(Arc::clone(&adapter), source.strength)?;
        let loaded = LoadedAdapter {
            name: source.name.clone(),
            path: source.path.clone(),
            strength: source.strength,
            rank: adapter.max_rank(),
            n_bytes: adapter.n_bytes(),
            id,
        };
        shelf.loaded().push(loaded.clone());
        Ok(loaded)
    }

    /// Takes an adapter's name away and forgets the adapter once the requests that have it have ended.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`].
    pub fn unload_adapter(&self, name: &str) -> Result<(), Error> {
        let shelf = self.shelf();
        let _changing = shelf.changing();
        let LoadedAdapter { id, .. } = shelf.find(name)?;
        shelf.loaded().retain(|adapter| adapter.id != id);
        Ok(self.engine().remove_adapter(id)?)
    }

    /// Changes the scale of an adapter, for later requests.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], or [`Error::Engine`] where the engine has ended.
    pub fn set_adapter_strength(&self, name: &str, strength: f32) -> Result<(), Error> {
        let shelf = self.shelf();
        let _changing = shelf.changing();
        let old = shelf.find(name)?;
        if old.strength == strength {
            return Ok(());
        }
        let id = self.engine().copy_adapter(old.id, strength)?;
        for adapter in shelf.loaded().iter_mut().filter(|adapter| adapter.id == old.id) {
            (adapter.id, adapter.strength) = (id, strength);
        }
        Ok(self.engine().remove_adapter(old.id)?)
    }

    /// The adapters that requests can name, in the order in which they were loaded.
    pub fn adapters(&self) -> Vec<LoadedAdapter> {
        self.shelf().loaded().clone()
    }

    /// Adapters that it may have at a time.
    pub fn max_adapters(&self) -> usize {
        self.shelf().max_adapters
    }

    /// The adapter of this name.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`].
    pub fn adapter(&self, name: &str) -> Result<LoadedAdapter, Error> {
        self.shelf().find(name)
    }

    /// The adapter of a request that may name one.
    pub(crate) fn adapter_id(&self, name: Option<&str>) -> Result<Option<AdapterId>, Error> {
        name.map(|name| Ok(self.adapter(name)?.id)).transpose()
    }
}
