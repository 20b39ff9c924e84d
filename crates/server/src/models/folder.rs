//! [`ModelFolder`]: a folder whose models come and go while it is served.
//!
//! Separate because files are looked at here. Invariants: a folder is looked through at most once a second, by one thread, apart from those of
//! connections, also where the requests that asked for it are gone; a request for a model that is known waits for none of it.

use std::{
    fmt,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{
    spawn,
    sync::{Mutex, OwnedMutexGuard},
    task::spawn_blocking,
    time::timeout,
};

use super::{Inner, Kind, Many, ModelSpec, Models, catalog::Looked};

/// How long what was found is taken for what is there.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest that a request waits for what is found: a file system may hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says which models are in a folder now.
pub trait ModelFolder: fmt::Debug + Send + Sync {
    /// The models, each under the name that it had before and with the stamps that its files have now.
    ///
    /// # Errors
    /// Why the folder cannot be read, for the operator; what is served then stays as it is.
    fn models(&self) -> Result<Vec<ModelSpec>, String>;
}

/// A folder, and when it was looked through last. The lock is held by whoever looks through it.
#[derive(Debug)]
pub(super) struct Folder {
    models: Arc<dyn ModelFolder>,
    looked_at: Arc<Mutex<Option<Instant>>>,
}

impl Folder {
    pub(super) fn new(models: Box<dyn ModelFolder>) -> Self {
        Self {
            models: models.into(),
            looked_at: Arc::default(),
        }
    }
}

impl Models {
    /// Looks through the folder of models, if there is one and that was not done just now. Returns when that is done, or after a while: what is
    /// found later is served from then on.
    pub(crate) async fn look_through_folder(&self) {
        let Some(folder) = self.many().and_then(|many| many.folder.as_ref()) else {
            return;
        };
        // Where it is locked, somebody looks through it just now.
        if let Ok(looked_at) = Arc::clone(&folder.looked_at).try_lock_owned() {
            if looked_at.is_some_and(|at| at.elapsed() < PAUSE) {
                return;
            }
            let inner = Arc::downgrade(&self.inner);
            spawn(look_through(Arc::clone(&folder.models), looked_at, inner));
        }
        let patience = self.longest_wait().map_or(PATIENCE, |limit| limit.min(PATIENCE));
        drop(timeout(patience, folder.looked_at.lock()).await);
    }
}

/// Looks through a folder, and serves what is in it. Apart from the request that asks for it, which may go away before that is done.
async fn look_through(
    models: Arc<dyn ModelFolder>,
    mut looked_at: OwnedMutexGuard<Option<Instant>>,
    inner: Weak<Inner>,
) {
    let found = spawn_blocking(move || models.models()).await;
    *looked_at = Some(Instant::now());
    let inner = inner.upgrade();
    let Some(Kind::Many(many)) = inner.as_deref().map(|inner| &inner.kind) else {
        return;
    };
    match found {
        Ok(Ok(found)) => many.take_in(found),
        Ok(Err(reason)) => tracing::warn!("the folder of models cannot be looked through: {reason}"),
        Err(error) => tracing::error!(%error, "looking through the folder of models failed"),
    }
}

impl Many {
    /// Serves what is in the folder now.
    pub(super) fn take_in(&self, found: Vec<ModelSpec>) {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let Some(Looked {
            catalog: new,
            changed,
        }) = catalog.with_folder(found)
        else {
            return;
        };
        let now = Instant::now();
        let n_before = catalog.specs().len();
        for spec in &new.specs()[n_before..] {
            tracing::info!(model = spec.name(), "found in the folder of models");
            // Before its place is known to others.
            self.lock().add(spec.rules(self.keep_alive), now);
            self.add_reading();
        }
        for (idx, spec) in catalog.specs().iter().enumerate() {
            match (catalog.is_gone(idx), new.is_gone(idx)) {
                (false, true) => {
                    tracing::info!(model = spec.name(), "not in the folder of models any more");
                }
                (true, false) => tracing::info!(model = spec.name(), "in the folder of models again"),
                _ => {}
            }
        }
        for &idx in &changed {
            self.forget_reading(idx);
            self.lock().changed(idx);
        }
        let unseen = changed.into_iter().chain(n_before..new.specs().len());
        let unseen: Vec<usize> = unseen.collect();
        *catalog = Arc::new(new);
        drop(catalog);
        self.have_seen(unseen);
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::{
        super::{ModelLimits, Role, catalog::tests::specs},
        *,
    };
    use crate::ServerConfig;

    #[test]
    fn models_that_come_meanwhile_do_not_confuse_who_looks() {
        const N_MODELS: usize = 400;
        let models = Models::new(specs(&["first"]), ModelLimits::default(), ServerConfig::default());
        let models = models.expect("it has a name");
        let many = models.many().expect("it may have several");
        let names: Vec<String> = (0..N_MODELS).map(|idx| format!("m{idx}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n_models in 1..=N_MODELS {
                    many.take_in(specs(&names[..n_models]));
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                many.in_order_for(Role::Embedding);
                many.default_of(Role::Rank);
                assert_eq!(many.find("first"), Some(0));
                assert_eq!(many.find("owner/none"), None);
            }
        });
        assert_eq!(models.names().len(), N_MODELS + 1);
    }
}
