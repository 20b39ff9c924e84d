//! [`Models`]: all models of a server, loaded or not.
//!
//! The parts: [`ModelSpec`] describes a model that can be loaded; `registry` has the state of each model and
//! the next action; `room` chooses the models to unload so that another fits; `thread` loads and unloads;
//! `choice` finds the model of a request; `waiting` waits until it is loaded; `lease` keeps it loaded for the
//! request.
//!
//! The key decision: an endpoint gets one loaded model, which stays loaded until its answer is sent, so no
//! endpoint knows of the others. A server of one model has no registry and no thread; its requests get that
//! model under any name, and its endpoints refuse wrong names themselves.

mod by_role;
mod catalog;
mod choice;
mod figures;
mod folder;
mod keep_alive;
mod lease;
mod lookup;
mod one_model;
mod registry;
mod room;
mod spec;
mod status;
mod thread;
mod waiting;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokenmill::load::ModelFacts;
use tokenmill_sched::{EngineError, EngineState};

use self::{
    by_role::Reading,
    catalog::Catalog,
    figures::Figures,
    folder::{Folder, LoadedFiles},
    registry::Registry,
};
pub(crate) use self::{
    choice::{Choice, name_of_query},
    lease::Lease,
    lookup::Purpose,
    one_model::OneModel,
    status::{Doing, Status},
};
pub use self::{
    folder::{FolderError, FolderManager, ModelFolder, PullWatch},
    keep_alive::{KeepAlive, KeepAliveError},
    spec::{FileLoader, FileStamp, Measured, ModelLoader, ModelSpec, Role},
};
use crate::{
    ApiError, App, ServerConfig,
    app::{Common, served_model::unix_seconds},
    model_names::{ModelNames, forms, listed, near_names},
};

/// Limits the models of a server together.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Bytes that they may take together; `None` sets no bound.
    pub budget_bytes: Option<u64>,
    /// Time that a model stays loaded without requests, unless it has its own.
    pub keep_alive: KeepAlive,
    /// Requests that may wait for a model to be loaded.
    pub max_waiting: usize,
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            keep_alive: KeepAlive::Forever,
            max_waiting: 256,
        }
    }
}

/// Why models cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// There is none.
    #[error("there is no model to serve")]
    None,
    /// A model has no name, or an empty one.
    #[error("a model has no name")]
    NoName,
    /// Two have the same name.
    #[error("two models are called `{name}`: {} and {}; an alias tells them apart", models[0], models[1])]
    SameName {
        /// The name.
        name: String,
        /// Name of each as it was given.
        models: [String; 2],
    },
}

/// All models of a server. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Models {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    common: Common,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    One(Arc<App>),
    Many(Box<Many>),
}

/// Models that come and go.
#[derive(Debug)]
struct Many {
    catalog: RwLock<Arc<Catalog>>,
    /// The folder that is looked through again for models.
    folder: Option<Folder>,
    /// Time that a model of the folder stays loaded.
    keep_alive: KeepAlive,
    registry: Mutex<Registry<Arc<App>, Lease>>,
    bell: Condvar,
    /// Whether the thread that loads has ended.
    has_ended: AtomicBool,
    /// The files that models were loaded from last.
    loaded_files: Mutex<HashMap<usize, LoadedFiles>>,
    /// Models that were unloaded, and whose memory is not free yet.
    stuck: Mutex<Vec<(usize, Weak<()>)>>,
    /// Facts that were read of each.
    readings: Mutex<Vec<Reading>>,
    /// Models whose files are to be read, in this order.
    unseen: Mutex<VecDeque<usize>>,
    /// Requests without a name that wait until more was read.
    n_nameless: AtomicUsize,
    figures: Figures,
    created_s: u64,
}

/// A model as the lists show it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) status: Status<Arc<App>>,
    pub(crate) facts: Option<ModelFacts>,
    pub(crate) role: Role,
    /// Whether it takes images, as far as is known.
    pub(crate) sees: bool,
    /// Whether it has a chat template, as far as is known.
    pub(crate) has_chat_template: Option<bool>,
}

impl Listed {
    /// Whether nothing could be read of the model's files, so that it cannot be loaded.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.status.failure.is_some() && self.facts.is_none()
    }
}

impl From<Arc<App>> for Models {
    /// A server of one model.
    fn from(app: Arc<App>) -> Self {
        Self {
            inner: Arc::new(Inner {
                common: app.common(),
                kind: Kind::One(app),
            }),
        }
    }
}

impl ModelNames for Models {
    fn has_model(&self, name: &str) -> bool {
        match &self.inner.kind {
            Kind::One(app) => app.model.names().iter().any(|own| own == name),
            Kind::Many(many) => many.catalog().find(&forms(name)).is_some(),
        }
    }
}

impl Models {
    /// Puts together a server of models that are loaded when they are requested.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub fn new(
        specs: Vec<ModelSpec>,
        limits: ModelLimits,
        config: ServerConfig,
    ) -> Result<Self, ModelsError> {
        Self::with_folder(specs, None, limits, config)
    }

    /// Does the same as [`Self::new`], with a folder that is scanned again at most once a second: when a list is requested, a name is
    /// unknown, a model cannot be loaded, or, without waiting, a loaded model is used. New models in it are served; those of `specs` that
    /// are [of the folder](ModelSpec::is_of_folder), and are not in it any more, are served only as long as they are loaded. One whose
    /// [files](ModelSpec::stamps) are others is read again; where it is loaded, it is unloaded once no request runs on it. With a folder
    /// there may be no model at the start.
    ///
    /// # Errors
    /// Returns the errors of [`Self::new`].
    pub fn with_folder(
        specs: Vec<ModelSpec>,
        folder: Option<Box<dyn ModelFolder>>,
        limits: ModelLimits,
        config: ServerConfig,
    ) -> Result<Self, ModelsError> {
        let catalog = match &folder {
            // Models come later.
            Some(_) if specs.is_empty() => Catalog::default(),
            _ => Catalog::new(specs)?,
        };
        let specs = catalog.specs();
        let rules = specs.iter().map(|spec| spec.rules(limits.keep_alive));
        let now = Instant::now();
        let budget_bytes = limits.budget_bytes.unwrap_or(u64::MAX);
        let mut registry = Registry::new(rules, budget_bytes, limits.max_waiting, now);
        for (idx, spec) in specs.iter().enumerate() {
            if spec.is_pinned {
                registry.order(idx, now);
            }
        }
        for (idx, spec) in specs.iter().enumerate() {
            if spec.is_preloaded && !spec.is_pinned {
                registry.preload(idx, now);
            }
        }
        let mut common = Common::new(config);
        common.answers_any_name &= folder.is_none() && specs.len() == 1 && specs[0].adapters.is_empty();
        let inner = Arc::new(Inner {
            common,
            kind: Kind::Many(Box::new(Many {
                folder: folder.map(Folder::new),
                keep_alive: limits.keep_alive,
                registry: Mutex::new(registry),
                bell: Condvar::new(),
                has_ended: AtomicBool::new(false),
                loaded_files: Mutex::default(),
                stuck: Mutex::default(),
                readings: Mutex::new(vec![Reading::default(); specs.len()]),
                unseen: Mutex::new((0..specs.len()).collect()),
                n_nameless: AtomicUsize::new(0),
                figures: Figures::new(limits.budget_bytes),
                created_s: unix_seconds(),
                catalog: RwLock::new(Arc::new(catalog)),
            })),
        });
        thread::start(&inner);
        Ok(Self { inner })
    }

    /// Limits and keys.
    pub fn config(&self) -> &ServerConfig {
        &self.inner.common.config
    }

    /// Whether the server is ending.
    pub fn shutdown(&self) -> &crate::Shutdown {
        &self.inner.common.shutdown
    }

    /// The model of a server that serves one only.
    pub fn only(&self) -> Option<&Arc<App>> {
        match &self.inner.kind {
            Kind::One(app) => Some(app),
            Kind::Many(_) => None,
        }
    }

    /// The names of the models that are served, the first of each.
    pub fn names(&self) -> Vec<String> {
        match &self.inner.kind {
            Kind::One(app) => vec![app.model.name().to_owned()],
            Kind::Many(many) => {
                let catalog = many.catalog();
                let present = many.present(&catalog).into_iter();
                present
                    .map(|idx| catalog.specs()[idx].name().to_owned())
                    .collect()
            }
        }
    }

    /// The models that are loaded now.
    pub fn loaded(&self) -> Vec<Arc<App>> {
        match &self.inner.kind {
            Kind::One(app) => vec![Arc::clone(app)],
            Kind::Many(many) => {
                let n_models = many.catalog().specs().len();
                let (registry, now) = (many.lock(), Instant::now());
                let apps = (0..n_models).filter_map(|idx| registry.status(idx, now).app);
                apps.collect()
            }
        }
    }

    /// Returns how many requests run or wait, also for a model that is loading.
    pub fn n_requests(&self) -> usize {
        let of_engines = self.loaded().into_iter().map(|app| {
            let stats = app.engine().stats();
            stats.n_running + stats.n_paused + stats.n_waiting
        });
        of_engines.sum::<usize>() + self.n_waiting()
    }

    /// Ends the engines whose prompts are kept in a folder, once all that no request uses is written there, or when `patience` is over.
    /// Nothing is answered any more.
    pub fn keep_prefixes(&self, patience: Duration) {
        let loaded = self.loaded();
        let kept = || (loaded.iter()).filter(|app| app.model.model().prefix_folder_figures().is_some());
        for app in kept() {
            app.engine().drain();
        }
        let until = Instant::now() + patience;
        for app in kept() {
            app.engine()
                .wait_for_end(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Why the server cannot continue, where that is so: the engine of its one model has ended, a device was lost, or nothing can be
    /// loaded any more.
    pub fn lost(&self) -> Option<EngineError> {
        let ends = |app: &Arc<App>| match app.engine().state() {
            EngineState::Ended(reason) => Some(reason),
            _ => None,
        };
        let is_device = |reason: &EngineError| {
            matches!(
                reason,
                EngineError::Step(tokenmill_backend::StepError::DeviceLost { .. })
            )
        };
        match &self.inner.kind {
            Kind::One(app) => ends(app),
            Kind::Many(many) if many.has_ended.load(Ordering::Acquire) => Some(EngineError::Stopped),
            Kind::Many(_) => self.loaded().iter().filter_map(ends).find(is_device),
        }
    }

    pub(crate) fn common(&self) -> &Common {
        &self.inner.common
    }

    fn many_or<T>(&self, one: impl FnOnce(&Arc<App>) -> T, many: impl FnOnce(&Many) -> T) -> T {
        match &self.inner.kind {
            Kind::One(app) => one(app),
            Kind::Many(all) => many(all),
        }
    }

    fn many(&self) -> Option<&Many> {
        match &self.inner.kind {
            Kind::One(_) => None,
            Kind::Many(many) => Some(many),
        }
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refusal(&self, error: &ApiError) {
        self.many_or(
            |app| app.metrics.count_refusal(error),
            |many| many.figures.count_refusal(error),
        );
    }

    /// All figures in OpenMetrics text.
    pub(crate) fn figures(&self) -> String {
        self.many_or(
            |app| app.metrics.encode(app.model.model()),
            |many| many.figures.encode(&self.listed()),
        )
    }

    /// When the server began to serve its models, seconds since 1970.
    pub(crate) fn created_s(&self) -> u64 {
        self.many_or(|app| app.model.created_s(), |many| many.created_s)
    }

    /// The models as lists show them; nothing for a server of one.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        self.many().map_or_else(Vec::new, |many| {
            let indices = many.present(&many.catalog()).into_iter();
            indices.map(|idx| many.listed(idx)).collect()
        })
    }

    /// Returns one of several models as lists show it.
    ///
    /// # Panics
    /// On a server of one.
    pub(crate) fn listed_one(&self, idx: usize) -> Listed {
        let many = self.many().expect("a model that was found is one of several");
        many.listed(idx)
    }

    /// Requests that wait for a model to be loaded.
    pub(crate) fn n_waiting(&self) -> usize {
        self.many().map_or(0, |many| many.lock().n_waiting())
    }

    /// Whether one more request may wait for a model.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.many().is_none_or(|many| many.lock().has_room_to_wait())
    }

    /// Finds the model that a name means.
    ///
    /// # Errors
    /// [`ApiError::NoSuchModel`], with names that are near; [`ApiError::NoModel`] where none is served.
    pub(crate) async fn find(&self, asked: Option<&str>, role: Role) -> Result<usize, ApiError> {
        let Some(many) = self.many() else { return Ok(0) };
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
            if many.default_of(role).is_none() {
                self.look_through_folder().await;
            }
            return many.default_of(role).ok_or_else(|| self.none_served());
        };
        if let Some(idx) = many.find(asked) {
            return Ok(idx);
        }
        self.look_through_folder().await;
        let found = many.find(asked).or_else(|| self.only_one_for_any_name());
        found.ok_or_else(|| many.unknown(asked))
    }

    /// Says that no model is served, which a managed folder may come to.
    fn none_served(&self) -> ApiError {
        ApiError::NoModel {
            can_pull: self.folder_manager().is_some(),
        }
    }

    /// Says whether a model has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.inner.kind {
            Kind::One(app) => app.model.find(Some(name)).is_ok(),
            Kind::Many(many) => many.find(name).is_some(),
        }
    }

    /// Returns the only model of a server that loads and unloads it and accepts any name for it.
    fn only_one_for_any_name(&self) -> Option<usize> {
        self.inner.common.answers_any_name.then_some(0)
    }

    /// Leases a model for requests without a name: the default model if it is loaded, else the first that
    /// is. It loads nothing and keeps no model that is about to be unloaded.
    ///
    /// # Errors
    /// [`ApiError::NotReady`] where none is loaded, [`ApiError::NoModel`] where none is served.
    pub(crate) fn look(&self) -> Result<Lease, ApiError> {
        let many = match &self.inner.kind {
            Kind::One(app) => return Ok(Lease::fixed(Arc::clone(app))),
            Kind::Many(many) => many,
        };
        let by_default = many.default_of(Role::Chat).ok_or_else(|| self.none_served())?;
        let others = many.in_order_for(Role::Chat);
        let (mut registry, now) = (many.lock(), Instant::now());
        let found = std::iter::once(by_default)
            .chain(others)
            .find_map(|idx| Some((idx, registry.look(idx, now)?)));
        drop(registry);
        let (idx, app) = found.ok_or(ApiError::NotReady {
            reason: "no model is loaded; `?model=NAME` loads one",
        })?;
        Ok(Lease::counted(self.clone(), idx, Purpose::Look, app))
    }

    /// Gives a hold back.
    fn release(&self, idx: usize, purpose: Purpose) {
        if let Some(many) = self.many() {
            many.lock().release(idx, purpose, Instant::now());
            many.bell.notify_all();
        }
    }

    /// Has a model loaded, without waiting for it.
    pub(crate) fn order(&self, idx: usize) {
        if let Some(many) = self.many() {
            many.lock().order(idx, Instant::now());
            many.bell.notify_all();
        }
    }

    /// Has a model unloaded once its requests have ended. Returns whether it was loaded.
    pub(crate) fn dismiss(&self, idx: usize) -> bool {
        self.many().is_some_and(|many| {
            let is_loaded = many.lock().dismiss(idx);
            many.bell.notify_all();
            is_loaded
        })
    }
}

impl Many {
    fn lock(&self) -> MutexGuard<'_, Registry<Arc<App>, Lease>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, Vec<(usize, Weak<()>)>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something happens, or the time is over.
    fn wait(&self, time: Duration) {
        let registry = self.lock();
        drop(self.bell.wait_timeout(registry, time));
    }

    /// Returns the current models. Their readings and the registry know all of them, and may know more: a caller that looks at several
    /// models takes this once, and first.
    fn catalog(&self) -> Arc<Catalog> {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&catalog)
    }

    fn spec(&self, idx: usize) -> Arc<ModelSpec> {
        Arc::clone(&self.catalog().specs()[idx])
    }

    /// The models that are served: not those whose files have vanished, unless they are in memory.
    fn present(&self, catalog: &Catalog) -> Vec<usize> {
        let (registry, now) = (self.lock(), Instant::now());
        let is_present =
            |&idx: &usize| !catalog.is_gone(idx) || registry.status(idx, now).doing != Doing::Unloaded;
        (0..catalog.specs().len()).filter(is_present).collect()
    }

    fn listed(&self, idx: usize) -> Listed {
        let spec = self.spec(idx);
        let reading = self.reading(idx);
        Listed {
            status: self.lock().status(idx, Instant::now()),
            role: reading.role(&spec).unwrap_or(spec.role),
            facts: reading.facts,
            sees: reading.sees,
            has_chat_template: reading.has_chat_template,
            spec,
        }
    }

    /// The model of a name: its own, one of its adapters', `model:adapter`, one of an adapter that was loaded later, or that of the only
    /// model of a repository.
    fn find(&self, asked: &str) -> Option<usize> {
        let forms = forms(asked);
        let catalog = self.catalog();
        let found = (catalog.find(&forms))
            .or_else(|| self.find_loaded(&catalog, asked))
            .or_else(|| catalog.find_by_adapter(&forms))
            .or_else(|| catalog.find_by_repository(&forms, &self.present(&catalog)))?;
        let is_loaded = || self.lock().status(found, Instant::now()).doing != Doing::Unloaded;
        (!catalog.is_gone(found) || is_loaded()).then_some(found)
    }

    /// A model that is loaded and knows the name, by an adapter that it got since.
    fn find_loaded(&self, catalog: &Catalog, asked: &str) -> Option<usize> {
        let n_models = catalog.specs().len();
        let (registry, now) = (self.lock(), Instant::now());
        (0..n_models).find(|&idx| {
            let app = registry.status(idx, now).app;
            app.is_some_and(|app| app.model.choose_by_name(asked).is_some())
        })
    }

    fn unknown(&self, asked: &str) -> ApiError {
        let catalog = self.catalog();
        let present = self.present(&catalog);
        let specs = || present.iter().map(|&idx| &catalog.specs()[idx]);
        let names = || specs().flat_map(|spec| &spec.names).map(String::as_str);
        ApiError::NoSuchModel {
            model: asked.to_owned(),
            near: near_names(asked, names()).join(", "),
            available: listed(names()),
        }
    }

    /// The next model whose files are to be read.
    fn next_unseen(&self) -> Option<usize> {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        unseen.pop_front()
    }

    /// Has the files of models read that are in the catalog.
    fn have_seen(&self, models: impl IntoIterator<Item = usize>) {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        unseen.extend(models);
    }
}
