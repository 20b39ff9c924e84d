//! [`Models`]: all models of a server: those that are loaded, and those that can be.
//!
//! The parts: [`ModelSpec`] says what can be loaded, `registry` what each model is doing and what comes next, `room` which go so that
//! another fits, `thread` does it, `choice` finds what a request is for, `lease` is a request's hold on a model.
//!
//! The key decision: an endpoint is given one model that is loaded and stays so until its answer is sent, so that no endpoint knows of
//! the others. A server of one model has no registry and no thread; its requests find that model whatever they ask for, and its endpoints
//! refuse wrong names themselves.

mod asking;
mod by_role;
mod choice;
mod figures;
mod keep_alive;
mod lease;
mod one_model;
mod registry;
mod room;
mod spec;
mod status;
mod thread;

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokenmill::ModelFacts;
use tokenmill_sched::{EngineError, EngineState};
use tokio::time::timeout;

pub(crate) use self::{
    asking::Purpose,
    choice::Choice,
    lease::Lease,
    one_model::OneModel,
    status::{Doing, Status},
};
use self::{
    asking::{Asked, Rules},
    by_role::Reading,
    figures::Figures,
    registry::Registry,
};
pub use self::{
    keep_alive::{KeepAlive, KeepAliveError},
    spec::{FileLoader, Measured, ModelLoader, ModelSpec, Role},
};
use crate::{
    ApiError, App, ServerConfig,
    app::Common,
    model_names::{forms, is_of_repository, near_names},
    served_model::unix_seconds,
};

/// What holds for the models of a server together.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Bytes that they may take together; `None` sets no bound.
    pub budget_bytes: Option<u64>,
    /// How long one stays loaded without requests, where it has no time of its own.
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
        /// What each was given as.
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
    specs: Vec<ModelSpec>,
    /// Which model a name means; those of adapters are their model's.
    names: HashMap<String, usize>,
    registry: Mutex<Registry<Arc<App>, Lease>>,
    bell: Condvar,
    /// Whether the thread that loads has ended.
    has_ended: AtomicBool,
    /// Models that were unloaded, and whose memory is not free yet.
    stuck: Mutex<Vec<(usize, Weak<()>)>>,
    /// What was read of each.
    readings: Mutex<Vec<Reading>>,
    n_seen: AtomicUsize,
    /// Requests without a name that wait until more was read.
    n_nameless: AtomicUsize,
    figures: Figures,
    created_s: u64,
}

/// A model as the lists show it.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) status: Status<Arc<App>>,
    pub(crate) facts: Option<ModelFacts>,
    pub(crate) role: Role,
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

impl Models {
    /// Puts together a server of models that are loaded when they are asked for.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub fn new(
        specs: Vec<ModelSpec>,
        limits: ModelLimits,
        config: ServerConfig,
    ) -> Result<Self, ModelsError> {
        let names = names_of(&specs)?;
        let rules = specs.iter().map(|spec| Rules {
            name: spec.name().to_owned(),
            is_pinned: spec.is_pinned,
            keep_alive: spec.keep_alive.unwrap_or(limits.keep_alive),
        });
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
        let inner = Arc::new(Inner {
            common: Common::new(config),
            kind: Kind::Many(Box::new(Many {
                names,
                registry: Mutex::new(registry),
                bell: Condvar::new(),
                has_ended: AtomicBool::new(false),
                stuck: Mutex::default(),
                readings: Mutex::new(vec![Reading::default(); specs.len()]),
                n_seen: AtomicUsize::new(0),
                n_nameless: AtomicUsize::new(0),
                figures: Figures::new(limits.budget_bytes),
                created_s: unix_seconds(),
                specs,
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

    /// The names of the models, the first of each.
    pub fn names(&self) -> Vec<String> {
        match &self.inner.kind {
            Kind::One(app) => vec![app.model.name().to_owned()],
            Kind::Many(many) => many.specs.iter().map(|spec| spec.name().to_owned()).collect(),
        }
    }

    /// The models that are loaded now.
    pub fn loaded(&self) -> Vec<Arc<App>> {
        match &self.inner.kind {
            Kind::One(app) => vec![Arc::clone(app)],
            Kind::Many(many) => {
                let (registry, now) = (many.lock(), Instant::now());
                let apps = (0..many.specs.len()).filter_map(|idx| registry.status(idx, now).app);
                apps.collect()
            }
        }
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
    pub(crate) fn listed(&self) -> Vec<Listed<'_>> {
        let Some(many) = self.many() else {
            return Vec::new();
        };
        let readings = many.readings();
        let (registry, now) = (many.lock(), Instant::now());
        (many.specs.iter().zip(readings).enumerate())
            .map(|(idx, (spec, reading))| Listed {
                spec,
                status: registry.status(idx, now),
                role: reading.role(spec).unwrap_or(spec.role),
                facts: reading.facts,
            })
            .collect()
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
    /// [`ApiError::UnknownModel`] and [`ApiError::NoSuchModel`], with names that are near.
    pub(crate) fn find(&self, asked: Option<&str>, role: Role) -> Result<usize, ApiError> {
        let Some(many) = self.many() else { return Ok(0) };
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
            return Ok(many.default_of(role));
        };
        many.find(asked).ok_or_else(|| many.unknown(asked))
    }

    /// Holds a model to look at where none is named: the one that requests without a name are for, if it is loaded, else the first that
    /// is. Nothing is loaded for it, and what is to go is not kept.
    ///
    /// # Errors
    /// [`ApiError::NotReady`] where none is loaded.
    pub(crate) fn look(&self) -> Result<Lease, ApiError> {
        let many = match &self.inner.kind {
            Kind::One(app) => return Ok(Lease::fixed(Arc::clone(app))),
            Kind::Many(many) => many,
        };
        let by_default = many.default_of(Role::Chat);
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

    /// Waits until the model is loaded that a request is for, and holds it.
    ///
    /// # Errors
    /// A name that none has, a model that cannot be loaded, and a wait that is too long or has no room.
    pub(crate) async fn acquire(&self, choice: &Choice, purpose: Purpose) -> Result<Lease, ApiError> {
        let many = match &self.inner.kind {
            Kind::One(app) => return Ok(Lease::fixed(Arc::clone(app))),
            Kind::Many(many) => many,
        };
        if choice.model.is_none() {
            self.wait_for_roles(many, choice.role).await?;
        }
        let idx = self.find(choice.model.as_deref(), choice.role)?;
        let asked = many.lock().ask(idx, purpose, Instant::now());
        let answer = match asked {
            Asked::Runs(app) => return Ok(Lease::counted(self.clone(), idx, purpose, app)),
            Asked::Refused(error) => return Err(error),
            Asked::Waits(_) if self.shutdown().has_begun() => {
                return Err(ApiError::NotReady {
                    reason: "it is shutting down",
                });
            }
            Asked::Waits(answer) => answer,
        };
        // Rung now for the request, and when it is given up: what only it wished is then forgotten.
        let _bell = Bell(many);
        many.bell.notify_all();
        let answered = match self.longest_wait() {
            Some(limit) => timeout(limit, answer)
                .await
                .map_err(|_| ApiError::DeadlineExceeded)?,
            None => answer.await,
        };
        answered.unwrap_or(Err(ApiError::NotReady {
            reason: "it is shutting down",
        }))
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

/// Wakes the thread when it is dropped.
struct Bell<'a>(&'a Many);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        self.0.bell.notify_all();
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

    /// The model of a name: its own, one of its adapters', `model:adapter`, one of an adapter that was loaded later, or that of the only
    /// model of a repository.
    fn find(&self, asked: &str) -> Option<usize> {
        let forms = forms(asked);
        let known = forms.iter().find_map(|form| self.names.get(form).copied());
        known
            .or_else(|| self.find_loaded(asked))
            .or_else(|| self.find_by_adapter(&forms))
            .or_else(|| self.find_by_repository(&forms))
    }

    /// A model that is loaded and knows the name, by an adapter that it got since.
    fn find_loaded(&self, asked: &str) -> Option<usize> {
        let (registry, now) = (self.lock(), Instant::now());
        (0..self.specs.len()).find(|&idx| {
            let app = registry.status(idx, now).app;
            app.is_some_and(|app| app.model.choose_by_name(asked).is_some())
        })
    }

    /// The model of `model:adapter`, which is not loaded: it says itself whether it has the adapter.
    fn find_by_adapter(&self, forms: &[String]) -> Option<usize> {
        let has_adapter = |spec: &ModelSpec, form: &str| {
            let behind = |name: &String| form.strip_prefix(name.as_str())?.strip_prefix(':');
            let mut adapters = spec.names.iter().chain(&spec.given).filter_map(behind);
            adapters.any(|adapter| spec.adapters.iter().any(|known| known == adapter))
        };
        let is_known = |spec: &ModelSpec| forms.iter().any(|form| has_adapter(spec, form));
        self.specs.iter().position(is_known)
    }

    /// The model of a repository of which no other is served.
    fn find_by_repository(&self, forms: &[String]) -> Option<usize> {
        let is_of = |spec: &ModelSpec| {
            let mut names = spec.names.iter();
            names.any(|name| forms.iter().any(|form| is_of_repository(name, form)))
        };
        let mut found = (0..self.specs.len()).filter(|&idx| is_of(&self.specs[idx]));
        found.next().filter(|_| found.next().is_none())
    }

    fn unknown(&self, asked: &str) -> ApiError {
        let names = || self.specs.iter().flat_map(|spec| &spec.names).map(String::as_str);
        ApiError::NoSuchModel {
            model: asked.to_owned(),
            near: near_names(asked, names()).join(", "),
            available: names().collect::<Vec<_>>().join(", "),
        }
    }

    /// The next model whose files were not read yet.
    fn next_unseen(&self) -> Option<usize> {
        let idx = self.n_seen.fetch_add(1, Ordering::Relaxed);
        if idx < self.specs.len() {
            return Some(idx);
        }
        self.n_seen.store(self.specs.len(), Ordering::Relaxed);
        None
    }
}

/// The models by name.
fn names_of(specs: &[ModelSpec]) -> Result<HashMap<String, usize>, ModelsError> {
    if specs.is_empty() {
        return Err(ModelsError::None);
    }
    let mut names = HashMap::new();
    for (idx, spec) in specs.iter().enumerate() {
        if spec.names.is_empty() || spec.names.iter().any(String::is_empty) {
            return Err(ModelsError::NoName);
        }
        for name in spec.names.iter().chain(&spec.adapters) {
            if let Some(other) = names.insert(name.clone(), idx) {
                let given = |idx: usize| specs[idx].given.as_deref().unwrap_or(specs[idx].name());
                return Err(ModelsError::SameName {
                    name: name.clone(),
                    models: [other, idx].map(|idx| given(idx).to_owned()),
                });
            }
        }
    }
    for (idx, spec) in specs.iter().enumerate() {
        if let Some(given) = &spec.given {
            names.entry(given.clone()).or_insert(idx);
        }
    }
    Ok(names)
}
