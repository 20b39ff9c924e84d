//! The load of a part of a network on a GPU and of the rest on the CPU.
//!
//! Invariants: a requested placement is obeyed or refused. If the number of layers is left open, a network
//! that fits is placed on the GPU as a whole, any other by [`bandwidths`] in the fastest way. The plan is
//! shown before anything is loaded.

use tokenmill_backend::{MemoryPlan, NetworkShape, Side};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_model::{LoadProgress, Model, ModelExecutor, ModelOptions};
use tokenmill_placed::{
    BatchThreshold, DeviceLayers, Placed, Placement, PlacementRequest, Retreat, StepThresholds, Traffic,
    n_accepted, ranked,
};

use super::{
    machine::{bandwidths, machine},
    token_reads::token_reads,
    with_cuda::{check_kernels_of, device_error, load_whole, open},
};
use crate::{
    Device, Error, calibration,
    compute::Compute,
    gpu::GpuSteps,
    guesser::Guesser,
    loaded::{Loaded, LoadedDevice},
    machine_memory::{
        available_bytes, check_available, check_host_part, check_memory, machine_bytes, memory_limit,
    },
    measurements::MeasuredWhen,
    session::identity_of,
    split_plan::{SplitPlan, SplitReason},
};

/// A device made of the CPU and a GPU, and the requested placement.
struct Split<'a> {
    model: &'a Model,
    network: NetworkShape,
    options: &'a ModelOptions,
    backend: Sides,
    room_bytes: u64,
}

impl<'a> Split<'a> {
    /// Opens the GPU, with the requested placement.
    fn open(
        model: &'a Model,
        ordinal: usize,
        options: &'a ModelOptions,
        compute: &Compute,
    ) -> Result<Self, Error> {
        let network = model.descriptor().shape();
        check_placement(&compute.placement, &network)?;
        let device = open(ordinal, compute)?;
        let room_bytes = device.room_bytes().map_err(|error| Error::Gpu(error.into()))?;
        let placement = compute.placement.placement(&network);
        Ok(Self {
            model,
            network,
            options,
            backend: Placed::new(compute.cpu_backend()?, device, placement),
            room_bytes,
        })
    }

    /// The memory of a placement.
    fn plan(&mut self, placement: Placement) -> Result<MemoryPlan, Error> {
        self.backend.set_placement(placement);
        Ok(self.model.plan(&self.backend, self.options)?)
    }

    /// Plans the requested placement unchanged, and leaves the backend with it.
    fn as_asked(&mut self, request: &PlacementRequest) -> Result<MemoryPlan, Error> {
        let plan = self.plan(request.placement(&self.network))?;
        if plan.device_bytes() as u64 <= self.room_bytes {
            Ok(plan)
        } else {
            Err(self.too_large(request, plan.device_bytes() as u64)?)
        }
    }

    /// The quickest placement that fits, and why it was chosen; leaves the backend with it.
    fn quickest(
        &mut self,
        request: &PlacementRequest,
        compute: &Compute,
    ) -> Result<(MemoryPlan, SplitReason), Error> {
        let plan = self.plan(request.placement(&self.network))?;
        if plan.device_bytes() as u64 <= self.room_bytes {
            return Ok((plan, SplitReason::AsAsked));
        }
        // Where nothing fits there is nothing to measure for.
        let first_fits = self.first_fits(request)?;
        let network = self.network.clone();
        let reads = token_reads(self.model, &network, self.options, &mut self.backend)?;
        let (bandwidths, when) = bandwidths(compute, self.backend.host(), self.backend.device())?;
        let candidates = ranked(request, &network, &reads, &bandwidths, &first_fits);
        let host_alone = Traffic::of_host_alone(&reads).seconds(&bandwidths);
        let may_be_host_alone = compute.device == Device::Auto && request.is_all_left_open();
        let may_be_host_alone = may_be_host_alone && self.fits_on_host()?;
        let mut refused = None;
        for candidate in &candidates {
            if may_be_host_alone && host_alone < candidate.seconds {
                return Err(Error::CpuIsQuicker {
                    alone_per_s: 1.0 / host_alone,
                    split_per_s: 1.0 / candidate.seconds,
                    bandwidths,
                });
            }
            let plan = self.plan(candidate.placement.clone())?;
            match check_host_part(&plan, machine_bytes(), available_bytes()) {
                Ok(()) => {
                    let n_fitting = n_accepted(&candidates, |placement| {
                        let plan = self.plan(placement.clone())?;
                        Ok::<_, Error>(check_host_part(&plan, machine_bytes(), available_bytes()).is_ok())
                    })?;
                    self.backend.set_placement(candidate.placement.clone());
                    let reason = SplitReason::Quickest {
                        bandwidths,
                        when,
                        traffic: candidate.traffic,
                        n_fitting,
                        seconds: candidate.seconds,
                        cpu_alone_seconds: host_alone,
                    };
                    return Ok((plan, reason));
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.expect("there is a candidate"))
    }

    /// Returns the first level of each retreat that fits. Fails if no retreat leaves the GPU a part.
    fn first_fits(&mut self, request: &PlacementRequest) -> Result<Vec<(Retreat, Option<usize>)>, Error> {
        let network = self.network.clone();
        let mut first_fits = Vec::new();
        for retreat in Retreat::all(request, &network) {
            let placement = |level| retreat.placement(request, &network, level);
            first_fits.push((retreat, self.least(retreat.last_level(&network), placement)?));
        }
        let has_part = |&(retreat, level): &(Retreat, Option<usize>)| {
            level.is_some_and(|level| !retreat.placement(request, &network, level).is_all_on_host())
        };
        if first_fits.iter().any(has_part) {
            Ok(first_fits)
        } else {
            Err(self.nothing_fits(request)?)
        }
    }

    /// Refuses a request of which not even a part fits.
    fn check_room(&mut self, request: &PlacementRequest) -> Result<(), Error> {
        let plan = self.plan(request.placement(&self.network))?;
        if plan.device_bytes() as u64 > self.room_bytes {
            self.first_fits(request)?;
        }
        Ok(())
    }

    /// Why not even the least of a split fits.
    fn nothing_fits(&mut self, request: &PlacementRequest) -> Result<Error, Error> {
        let network = self.network.clone();
        let mut needed_bytes = u64::MAX;
        for retreat in Retreat::all(request, &network) {
            // The level before the last has the least of a split.
            let least = retreat.last_level(&network).saturating_sub(1);
            let plan = self.plan(retreat.placement(request, &network, least))?;
            needed_bytes = needed_bytes.min(plan.device_bytes() as u64);
        }
        self.too_large(request, needed_bytes)
    }

    /// Whether the machine has the memory for all of the network.
    fn fits_on_host(&self) -> Result<bool, Error> {
        let plan = self.model.plan(self.backend.host(), self.options)?;
        let fits = check_memory(&plan, memory_limit()).is_ok();
        Ok(fits && check_available(&plan, available_bytes()).is_ok())
    }

    /// The least of the numbers up to `last` whose placement fits into the GPU's memory; each has no more there than the one before.
    fn least(&mut self, last: usize, placement: impl Fn(usize) -> Placement) -> Result<Option<usize>, Error> {
        let (mut low, mut high) = (0, last + 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.plan(placement(middle))?.device_bytes() as u64 <= self.room_bytes {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok((high <= last).then_some(high))
    }

    /// Why a request does not fit, and the number of layers that would fit with its other parts unchanged.
    fn too_large(&mut self, request: &PlacementRequest, needed_bytes: u64) -> Result<Error, Error> {
        let network = self.network.clone();
        let n_layers = network.layers.len();
        let n_given_up = self.least(n_layers, |n_given_up| {
            let layers = DeviceLayers::Last(n_layers - n_given_up);
            PlacementRequest { layers, ..*request }.placement(&network)
        })?;
        let has_experts = network.layers.iter().any(|layer| layer.experts.is_some());
        let fitting_host_experts = if has_experts && request.layers != DeviceLayers::Auto {
            self.least(n_layers, |n_host_experts| {
                PlacementRequest {
                    n_host_experts,
                    ..*request
                }
                .placement(&network)
            })?
        } else {
            None
        };
        Ok(Error::SplitTooLarge {
            needed_bytes,
            free_bytes: self.room_bytes,
            fitting_layers: n_given_up.map_or(0, |n| n_layers - n),
            fitting_host_experts,
            n_layers,
        })
    }
}

/// Refuses a placement that a network cannot have, on whatever GPU.
fn check_placement(request: &PlacementRequest, network: &NetworkShape) -> Result<(), Error> {
    if request.names_experts() && network.layers.iter().all(|layer| layer.experts.is_none()) {
        return Err(Error::NoExperts);
    }
    if request.placement(network).is_all_on_host() {
        return Err(Error::NothingOnGpu);
    }
    Ok(())
}

/// Makes the refusals of [`load_split`] that come before it reads a weight; where the number of layers is left open, not what the host has
/// no memory for.
pub(crate) fn check_split(
    model: &Model,
    ordinal: usize,
    options: &ModelOptions,
    compute: &Compute,
) -> Result<(), Error> {
    let mut split = Split::open(model, ordinal, options, compute)?;
    if compute.placement.layers == DeviceLayers::Auto {
        return split.check_room(&compute.placement);
    }
    let plan = split.as_asked(&compute.placement)?;
    if split.backend.placement().is_all_on_device() {
        return Ok(());
    }
    check_host_part(&plan, machine_bytes(), available_bytes())
}

/// Loads a part of the network on a GPU and the rest on the CPU. If the request amounts to all of it on the GPU, loads that, with its draft
/// model or MTP layer.
pub(crate) fn load_split(
    model: &Model,
    ordinal: usize,
    options: &ModelOptions,
    compute: &Compute,
    guesser: Guesser<'_>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let request = compute.placement;
    let compute = &check_kernels_of(model, ordinal, options, compute)?;
    let mut split = Split::open(model, ordinal, options, compute)?;
    let name = split.backend.device().device().info().name.clone();
    let (plan, reason) = if request.layers == DeviceLayers::Auto {
        split.quickest(&request, compute)?
    } else {
        (split.as_asked(&request)?, SplitReason::AsAsked)
    };
    let placement = split.backend.placement().clone();
    if placement.is_all_on_device() {
        let device = split.backend.into_device();
        return load_whole(model, (ordinal, device), options, compute, guesser, on_progress);
    }
    if options.adapter_bytes > 0 {
        return Err(Error::AdaptersNotWhole);
    }
    guesser.check_split()?;
    check_host_part(&plan, machine_bytes(), available_bytes())?;
    let (n_layers, n_gpu_layers) = (
        placement.layers().len(),
        (placement.layers().iter())
            .filter(|layer| [layer.mixer, layer.ffn, layer.experts].contains(&Side::Device))
            .count(),
    );
    let place = format!("{:?}", placement.layers());
    let bandwidths_known = match &reason {
        SplitReason::Quickest { when, .. } => Some(when.clone()),
        SplitReason::AsAsked => None,
    };
    if let Some(observer) = compute.on_split {
        let weights = Side::ALL.map(|side| model.weights_by_part(&split.backend, options, side));
        let [on_host, on_device] = weights;
        observer.0(&SplitPlan {
            gpu: format!("GPU {ordinal} ({name})"),
            room_bytes: split.room_bytes,
            reason,
            placement,
            weights: [on_host?, on_device?],
            memory: plan.clone(),
        });
    }
    let mut executor = (model.load_on(split.backend, options, on_progress)).map_err(device_error)?;
    let (gpu_steps, steps_known) = match request.threshold {
        BatchThreshold::Tokens(n) => (GpuSteps::of_all(n.max(1)), MeasuredWhen::Given),
        BatchThreshold::Measured => {
            let found = measured_steps(model, options, compute, &place, &mut executor)?;
            set_thresholds(&mut executor, found.0.thresholds());
            found
        }
    };
    let (_, kernels_took) = executor.backend::<Sides>().device().device().module_loads();
    Ok(Loaded {
        executor: Box::new(executor),
        device: LoadedDevice::Split {
            ordinal,
            name,
            kernels_took,
            n_gpu_layers,
            n_layers,
            gpu_steps,
            steps_known,
            bandwidths_known,
        },
        plan,
        guesser: None,
    })
}

/// The CPU and a GPU as one backend.
type Sides = Placed<CpuBackend, CudaBackend>;

fn set_thresholds(executor: &mut ModelExecutor, thresholds: StepThresholds) {
    executor.backend_mut::<Sides>().set_thresholds(thresholds);
}

/// From where on the GPU computes what both sides have: measured now, or before, of this model with this placement on this machine.
fn measured_steps(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    place: &str,
    executor: &mut ModelExecutor,
) -> Result<(GpuSteps, MeasuredWhen), Error> {
    let n_ctx = options.n_ctx.unwrap_or(model.descriptor().n_ctx_train);
    // A file that cannot be read again is not a reason to refuse a model that was loaded from it.
    let identity = identity_of(model, n_ctx).ok();
    let subject = identity.map(|identity| {
        format!(
            "model {identity:032x}, {place}, at most {} tokens of {} sequences in a step, contexts of {n_ctx}, {} and {}, invariant {}, prompts by {:?} threads, by tokenmill {} with {:?}, {:?}, {:?}; {}",
            options.max_batch_tokens,
            options.max_batch_seqs,
            options.kv_type,
            options.kv_value_type.unwrap_or(options.kv_type),
            compute.gpu.is_batch_invariant,
            compute.n_prefill_threads,
            env!("CARGO_PKG_VERSION"),
            compute.gpu.warpgroup_products,
            compute.gpu.launches_in_order,
            compute.gpu.reads_apart,
            machine(compute, executor.backend::<Sides>().device()),
        )
    });
    let mut measure =
        || calibration::calibrate(executor, set_thresholds).map_err(|source| Error::Calibration { source });
    match subject {
        Some(subject) => compute.measurements.of_load(compute.is_quiet).find_or_make(
            "gpu-batch",
            &subject,
            GpuSteps::from_json,
            |steps| steps.to_json(),
            measure,
        ),
        None => Ok((measure()?, MeasuredWhen::Now { not_kept: None })),
    }
}
