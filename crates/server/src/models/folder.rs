//! [`ModelFolder`]: a folder whose models come and go while it is served.
//!
//! Separate because files are looked at here. Invariants: a folder is looked through at most once a second, by one thread, apart from those of
//! connections; a request for a model that is known waits for none of it.

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, task::spawn_blocking};

use super::{Many, ModelSpec, Models};

/// How long what was found is taken for what is there.
const PAUSE: Duration = Duration::from_secs(1);

/// Says which models are in a folder now.
pub trait ModelFolder: fmt::Debug + Send + Sync {
    /// The models, each under the name that it had before.
    ///
    /// # Errors
    /// Why the folder cannot be read, for the operator; what is served then stays as it is.
    fn models(&self) -> Result<Vec<ModelSpec>, String>;
}

/// A folder, and when it was looked through last.
#[derive(Debug)]
pub(super) struct Folder {
    models: Arc<dyn ModelFolder>,
    looked_at: Mutex<Option<Instant>>,
}

impl Folder {
    pub(super) fn new(models: Box<dyn ModelFolder>) -> Self {
        Self {
            models: models.into(),
            looked_at: Mutex::const_new(None),
        }
    }
}

impl Models {
    /// Looks through the folder of models, if there is one and that was not done just now.
    pub(crate) async fn look_through_folder(&self) {
        let Some((many, folder)) = self.many().and_then(|many| Some((many, many.folder.as_ref()?))) else {
            return;
        };
        // Those that come meanwhile wait for what is found, and look no more themselves.
        let mut looked_at = folder.looked_at.lock().await;
        if looked_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let models = Arc::clone(&folder.models);
        let found = spawn_blocking(move || models.models()).await;
        *looked_at = Some(Instant::now());
        match found {
            Ok(Ok(found)) => many.take_in(found),
            Ok(Err(reason)) => tracing::warn!("the folder of models cannot be looked through: {reason}"),
            Err(error) => tracing::error!(%error, "looking through the folder of models failed"),
        }
    }
}

impl Many {
    /// Serves what is in the folder now.
    fn take_in(&self, found: Vec<ModelSpec>) {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let Some(new) = catalog.with_folder(found) else {
            return;
        };
        let now = Instant::now();
        for spec in &new.specs()[catalog.specs().len()..] {
            tracing::info!(model = spec.name(), "found in the folder of models");
            // Before its place is known to others.
            self.lock().add(spec.rules(self.keep_alive), now);
            self.add_reading();
        }
        for (idx, spec) in catalog.specs().iter().enumerate() {
            if new.is_gone(idx) && !catalog.is_gone(idx) {
                tracing::info!(model = spec.name(), "not in the folder of models any more");
            }
        }
        *catalog = Arc::new(new);
        drop(catalog);
        self.bell.notify_all();
    }
}
