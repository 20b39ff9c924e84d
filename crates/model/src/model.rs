//! [`Model`]: an opened model file, its memory plan, and its load.
//!
//! A model can be described and planned without an executor. Invariant: opening reads headers only, and
//! [`Model::load_on`] allocates exactly what [`Model::plan`] reports.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tokenmill_backend::{
    BackendError, MatrixData, Measure, MemoryPlan, NetworkPart, Side, Weigh,
    program::{Program, ProgramDevice, WeightStore},
};
use tokenmill_gguf::{GgufFile, TensorType};

use crate::{
    AdapterReader, ControlVector, Descriptor, LoadError, LoadProgress, ModelExecutor, ModelOptions,
    WeightSource,
    arch::{self, HfNetwork},
    gguf_header::GgufHeader,
    hf_config::HfConfig,
    network::Network,
    nextn::SharedWeights,
    plan::{kv_layout, limits, plan, plan_sharing, prepare, state_layout},
    safetensors_folder::SafetensorsFolder,
};

/// An opened model.
pub struct Model {
    descriptor: Descriptor,
    weights: Weights,
}

enum Weights {
    Gguf(GgufFile),
    Safetensors(SafetensorsFolder, FolderFiles),
}

/// The paths from which a folder's headers were read.
pub(crate) struct FolderFiles {
    pub(crate) folder: PathBuf,
    pub(crate) config: PathBuf,
}

impl Model {
    /// Opens a GGUF file (any part of a split one), or a Hugging Face folder with `config.json` and
    /// safetensors files.
    ///
    /// # Errors
    /// [`LoadError::Gguf`], [`LoadError::UnknownArchitecture`], or another error that the headers reveal.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        if path.is_dir() {
            Self::from_hf(path, &path.join("config.json"))
        } else {
            Self::from_gguf(GgufFile::open(path)?)
        }
    }

    /// Creates a model from an opened GGUF file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_gguf(file: GgufFile) -> Result<Self, LoadError> {
        Ok(Self {
            descriptor: arch::describe_header(GgufHeader::of_file(&file)?)?,
            weights: Weights::Gguf(file),
        })
    }

    /// Opens the safetensors files of a folder with a given `config.json`, in its old or new layout.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_hf(folder: &Path, config: &Path) -> Result<Self, LoadError> {
        let files = FolderFiles {
            folder: folder.to_owned(),
            config: config.to_owned(),
        };
        let config = HfConfig::open(config)?;
        let HfNetwork {
            descriptor,
            layout,
            config,
            ..
        } = arch::describe_hf(&config)?;
        let weights = SafetensorsFolder::open(folder, &layout, &descriptor, config.fp8_scales()?, None)?;
        Ok(Self {
            descriptor,
            weights: Weights::Safetensors(weights, files),
        })
    }

    /// Returns the network's descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the GGUF file with its metadata, if the model is one.
    pub fn gguf(&self) -> Option<&GgufFile> {
        match &self.weights {
            Weights::Gguf(file) => Some(file),
            Weights::Safetensors(..) => None,
        }
    }

    /// Returns the paths of the folder's headers, if the model is a folder.
    pub(crate) fn folder_files(&self) -> Option<&FolderFiles> {
        match &self.weights {
            Weights::Gguf(_) => None,
            Weights::Safetensors(_, files) => Some(files),
        }
    }

    /// Returns the weights, by their GGUF names.
    pub fn weights(&self) -> &dyn WeightSource {
        match &self.weights {
            Weights::Gguf(file) => file,
            Weights::Safetensors(folder, _) => folder,
        }
    }

    /// Adds `scale` times the directions of some layers to the stream after those layers, in everything
    /// computed with the model once it is loaded. Several control vectors add up.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] for another width, [`LoadError::BadOption`] for layers that do not exist,
    /// [`LoadError::UnsupportedFeature`] for a network with several streams.
    pub fn add_control_vector(
        &mut self,
        vector: &ControlVector,
        scale: f32,
        layers: &RangeInclusive<usize>,
    ) -> Result<(), LoadError> {
        vector.add_to(&mut self.descriptor, scale, layers)
    }

    /// Returns a reader of adapters for this model.
    pub fn adapter_reader(&self) -> AdapterReader {
        AdapterReader::new(&self.descriptor, self.gguf().is_some())
    }

    /// Sets other types for a folder's tensors, by GGUF name: they are encoded in these types as they load.
    ///
    /// # Errors
    /// [`LoadError::NotEncodable`]: a type without an encoder, or rows that are not whole blocks of it.
    ///
    /// # Panics
    /// If the model is a GGUF file.
    pub fn encode_weights(&mut self, types: &BTreeMap<String, TensorType>) -> Result<(), LoadError> {
        match &mut self.weights {
            Weights::Safetensors(folder, _) => folder.encode(types),
            Weights::Gguf(_) => panic!("the tensors of a file load as they are"),
        }
    }

    /// Returns the memory that loading on `backend` will take.
    ///
    /// # Errors
    /// [`LoadError::BadOption`].
    pub fn plan(&self, backend: &dyn Weigh, options: &ModelOptions) -> Result<MemoryPlan, LoadError> {
        plan(&self.descriptor, self.weights(), backend, options)
    }

    /// Returns the bytes that the weights of each part will take on one side of `backend`.
    ///
    /// # Errors
    /// [`LoadError`], if the weights are invalid.
    pub fn weights_by_part(
        &self,
        backend: &dyn Weigh,
        options: &ModelOptions,
        side: Side,
    ) -> Result<BTreeMap<NetworkPart, usize>, LoadError> {
        let limits = limits(&self.descriptor, options)?;
        let mut weights = Measure::new(backend, side);
        Network::load(
            &self.descriptor,
            self.weights(),
            limits.n_ctx,
            &mut weights,
            None,
            &mut |_| {},
        )?;
        Ok(weights.by_part().clone())
    }

    /// Returns the network's program as it is written: all operations, for the rows of all tokens, before any pass.
    ///
    /// # Errors
    /// [`LoadError`], if the weights or the options are invalid.
    pub fn program(&self, options: &ModelOptions) -> Result<Program, LoadError> {
        let limits = limits(&self.descriptor, options)?;
        let (source, n_ctx) = (self.weights(), limits.n_ctx);
        let network = Network::load(
            &self.descriptor,
            source,
            n_ctx,
            &mut DeclareOnly,
            None,
            &mut |_| {},
        )?;
        Ok(network.write(&self.descriptor))
    }

    /// Loads the network on a device: a backend, or one that is boxed.
    ///
    /// # Errors
    /// [`LoadError`]: a tensor that is missing, has a wrong shape or an unsupported type, or a backend's error.
    pub fn load_on(
        &self,
        device: impl Into<Box<dyn ProgramDevice>>,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<ModelExecutor, LoadError> {
        build(&self.descriptor, self.weights(), device, options, on_progress)
    }
}

/// Builds a network from any descriptor and weights; [`Model`] does it for files.
///
/// # Errors
/// [`LoadError`]: a tensor that is missing, has a wrong shape or an unsupported type, or a backend's error.
pub fn build(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    device: impl Into<Box<dyn ProgramDevice>>,
    options: &ModelOptions,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<ModelExecutor, LoadError> {
    build_sharing(descriptor, source, device.into(), options, None, on_progress)
}

/// Does the same as [`build`], sharing weights that another network has loaded.
pub(crate) fn build_sharing(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    mut device: Box<dyn ProgramDevice>,
    options: &ModelOptions,
    shared: Option<(SharedWeights, &ModelExecutor)>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<ModelExecutor, LoadError> {
    let (shared, owner) = shared.unzip();
    let plan = plan_sharing(descriptor, source, device.weigh(), options, shared)?;
    let limits = limits(descriptor, options)?;
    let kv = kv_layout(descriptor, &limits, options);
    device.prepare(&descriptor.shape(), &limits, &kv, &plan)?;
    if let (Some(shared), Some(owner)) = (shared, owner) {
        device.share(&*owner.device, &owner.network.shared_matrices(shared))?;
    }
    let network = Network::load(
        descriptor,
        source,
        limits.n_ctx,
        device.weights(),
        shared,
        on_progress,
    )?;
    let prepared = prepare(descriptor, &network, &limits, options.fusion);
    let states = (limits.n_states > 0).then(|| state_layout(descriptor, &limits));
    device.alloc(prepared, &kv, states.as_ref())?;
    Ok(ModelExecutor::new(device, network, limits))
}

/// Keeps no weights: for a program alone.
struct DeclareOnly;

impl WeightStore for DeclareOnly {
    fn enter(&mut self, _: NetworkPart) {}

    fn store_matrix(&mut self, _: &MatrixData<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn share_matrix(&mut self) {}

    fn store_vector(&mut self, _: &[f32]) -> Result<(), BackendError> {
        Ok(())
    }
}
