//! [`Mtp`]: a model's own MTP layer, from its file to its executor.
//!
//! A draft model, in contrast, computes alone. Invariant: without the layer the same model is loaded, and
//! generates the same.

use std::path::{Path, PathBuf};

use tokenmill_backend::{Executor, MemoryPlan, Weigh, program::ProgramDevice};
use tokenmill_model::{LoadError, LoadProgress, Model as Network, ModelExecutor, ModelOptions, Nextn};
use tokenmill_sched::{Speculation, hidden_states_bytes};

use crate::{
    Error,
    compute::Compute,
    draft_facts::{DraftFacts, LoadedGuesser, options_next_to},
    machine_memory::{available_bytes, check_available, check_memory, memory_limit},
    model_source::ModelSource,
    mtp_file::MtpFile,
};

/// A layer whose headers were read.
pub(crate) struct Mtp<'a> {
    layer: Nextn<'a>,
    /// The file that it has to itself, if it has one.
    path: Option<&'a Path>,
}

/// The facts about a network's MTP layer that are known before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MtpPlan {
    /// The memory that it takes on the CPU, next to the network.
    pub memory: MemoryPlan,
    /// The file next to the model that has it; `None` where the model's own file has it.
    pub file: Option<PathBuf>,
}

/// The memory that a network's MTP layer takes on the CPU, next to the network with `options`; nothing where neither its
/// file nor one next to it has such a layer.
///
/// # Errors
/// [`Error::Load`]: a fault of the layer.
pub fn mtp_plan(
    source: &ModelSource,
    network: &Network,
    options: &ModelOptions,
    compute: &Compute,
) -> Result<Option<MtpPlan>, Error> {
    let plan = |layer: Mtp<'_>| {
        Ok(MtpPlan {
            memory: layer.plan(options, compute)?,
            file: layer.path.map(Path::to_owned),
        })
    };
    if let Some(layer) = network.nextn()? {
        return plan(Mtp { layer, path: None }).map(Some);
    }
    let file = MtpFile::beside(source, network, None);
    file.map(|file| plan(Mtp::of_file(&file, network)?)).transpose()
}

impl<'a> Mtp<'a> {
    /// Finds the layer in a network's own file, if `speculation` asks for it or may use an existing one.
    ///
    /// # Errors
    /// [`Error::NoMtp`] and [`Error::Load`], if the caller asked for it.
    pub(crate) fn find(network: &'a Network, speculation: Speculation) -> Result<Option<Self>, Error> {
        match speculation {
            Speculation::Mtp { .. } => match network.nextn()? {
                Some(layer) => Ok(Some(Self { layer, path: None })),
                None => Err(Error::NoMtp),
            },
            // An optional layer that cannot be described is ignored, as if it were not in the file.
            Speculation::Auto { .. } => {
                let layer = network.nextn().ok().flatten();
                Ok(layer.map(|layer| Self { layer, path: None }))
            }
            _ => Ok(None),
        }
    }

    /// Takes the layer of a file that was opened for a network.
    ///
    /// # Errors
    /// [`Error::Mtp`].
    pub(crate) fn of_file(file: &'a MtpFile, network: &'a Network) -> Result<Self, Error> {
        Ok(Self {
            layer: file.layer(network)?,
            path: Some(file.path()),
        })
    }

    /// Returns the memory that the layer takes on the CPU, next to a network with `options`.
    ///
    /// # Errors
    /// [`Error::Load`] if something is wrong with the weights.
    pub(crate) fn plan(&self, options: &ModelOptions, compute: &Compute) -> Result<MemoryPlan, Error> {
        Ok(self.plan_apart(&compute.cpu_backend()?, options)?)
    }

    /// Returns the memory that the layer takes on a backend of its own, next to a network with `options`.
    ///
    /// # Errors
    /// [`LoadError`] if something is wrong with the weights.
    pub(crate) fn plan_apart(
        &self,
        backend: &dyn Weigh,
        options: &ModelOptions,
    ) -> Result<MemoryPlan, LoadError> {
        self.plan_on(
            backend,
            &options_next_to(self.layer.descriptor().n_ctx_train, options),
        )
    }

    /// Returns the memory that the layer takes with options of its own: its weights, and the network's hidden
    /// states that the machine's memory keeps for it.
    fn plan_on(&self, backend: &dyn Weigh, own: &ModelOptions) -> Result<MemoryPlan, LoadError> {
        let mut plan = self.layer.plan(backend, own)?;
        let descriptor = self.layer.descriptor();
        let n_ctx = own.n_ctx.unwrap_or(descriptor.n_ctx_train);
        let kept_bytes = hidden_states_bytes(n_ctx, own.max_batch_seqs, descriptor.n_embd);
        if backend.works_apart() {
            plan.on_host = Some(Box::new(MemoryPlan {
                workspace_bytes: kept_bytes,
                ..MemoryPlan::default()
            }));
        } else {
            plan.workspace_bytes += kept_bytes;
        }
        Ok(plan)
    }

    /// Checks that it can be loaded next to a network with `options` that takes `of_network`. Returns the bytes that it takes.
    ///
    /// # Errors
    /// [`Error::Load`], and that there is too little memory for both.
    pub(crate) fn check(
        &self,
        options: &ModelOptions,
        compute: &Compute,
        of_network: &MemoryPlan,
    ) -> Result<usize, Error> {
        let own_bytes = self.plan(options, compute)?.total_bytes();
        // Both stand in one place, so one sum is compared.
        let both = MemoryPlan {
            weights_bytes: own_bytes.saturating_add(of_network.weights_bytes),
            ..of_network.clone()
        };
        check_memory(&both, memory_limit())?;
        check_available(&both, available_bytes())?;
        Ok(own_bytes)
    }

    /// Loads it next to its network, whose embedding and head it shares.
    ///
    /// # Errors
    /// As [`Nextn::load_on`].
    pub(crate) fn load(
        &self,
        device: Box<dyn ProgramDevice>,
        options: &ModelOptions,
        network: &ModelExecutor,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedGuesser, LoadError> {
        let options = options_next_to(self.layer.descriptor().n_ctx_train, options);
        let memory = self.plan_on(device.weigh(), &options)?;
        let executor = self.layer.load_on(device, &options, network, on_progress)?;
        let facts = DraftFacts {
            name: match self.path.and_then(Path::file_name) {
                Some(file) => file.to_string_lossy().into_owned(),
                None => "MTP layer".to_owned(),
            },
            memory,
            n_ctx: executor.limits().n_ctx,
            is_own_layer: true,
        };
        Ok(LoadedGuesser {
            executor: Box::new(executor),
            facts,
        })
    }
}
