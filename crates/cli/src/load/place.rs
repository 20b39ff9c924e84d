//! The options that determine where a model is computed: on which device, which parts of it, and on how many
//! GPUs.
//!
//! Unlike the other options of a load, they can contradict each other. Invariant: a contradiction is refused
//! with both flags as they are typed.

use std::sync::Once;

use tokenmill::{
    Device,
    gpu::AllReduce,
    load::Side,
    placement::{BatchThreshold, DeviceLayers, Measurements, PlacementRequest},
};

use super::{LoadArgs, report};
use crate::{failure::Failure, model_name::cache_folder};

/// Selects the first GPU, as `flag` asks, or the CPU if no GPU can be used. Command lines are copied between machines, so only `--device`
/// insists on a GPU.
fn gpu_or_cpu(flag: &str) -> Device {
    static SAID: Once = Once::new();
    if tokenmill::gpu::has_gpu() {
        return Device::Cuda { ordinal: 0 };
    }
    SAID.call_once(|| {
        report::tell(&format!(
            "`{flag}` asks for a GPU, but no usable one was found: computing on the CPU (`--device cuda` insists on a GPU)"
        ));
    });
    Device::Cpu
}

impl LoadArgs {
    /// GPUs that compute together.
    ///
    /// # Errors
    /// Several next to something that leaves a part of the model to the CPU.
    pub(super) fn n_gpus(&self) -> Result<usize, Failure> {
        let n_gpus = self.flags.tensor_parallel_size.unwrap_or(1);
        match self.flags.gpu_layers {
            Some(layers) if n_gpus > 1 && layers != DeviceLayers::All => Err(Failure::usage(format!(
                "`--tensor-parallel-size {n_gpus}` and `-ngl {}` contradict each other: all layers are on all GPUs",
                typed(layers)
            ))),
            _ => Ok(n_gpus),
        }
    }

    /// Returns how several GPUs add up.
    ///
    /// # Errors
    /// A way for one GPU other than the default, and NCCL where results are not to depend on the batch.
    pub(super) fn all_reduce(&self) -> Result<AllReduce, Failure> {
        let way = self.flags.all_reduce.unwrap_or_default();
        let name = match way {
            AllReduce::Auto => return Ok(way),
            AllReduce::Nccl => "nccl",
            AllReduce::Host => "host",
        };
        if way == AllReduce::Nccl && self.flags.batch_invariant == Some(true) {
            return Err(Failure::usage(
                "`--all-reduce nccl` and `--batch-invariant` contradict each other: NCCL may add in an order that depends on the batch",
            ));
        }
        match self.flags.tensor_parallel_size {
            Some(n_gpus) if n_gpus > 1 => Ok(way),
            Some(n_gpus) => Err(Failure::usage(format!(
                "`--all-reduce {name}` and `--tensor-parallel-size {n_gpus}` contradict each other: one GPU has nothing to add up with"
            ))),
            None => Err(Failure::usage(format!(
                "`--all-reduce {name}` is for several GPUs: one has nothing to add up with"
            ))
            .hint("`--tensor-parallel-size N` takes N of them")),
        }
    }

    /// Returns which parts of the model go to the GPU.
    pub(super) fn placement(&self) -> Result<PlacementRequest, Failure> {
        let request = self.placement_request();
        let contradiction = |one: &str, other: &str, reason: &str| {
            Err(Failure::usage(format!(
                "`{one}` and `{other}` contradict each other: {reason}"
            )))
        };
        let parts = request.parts;
        if self.flags.cpu_moe == Some(true) && parts.experts == Some(Side::Device) {
            return contradiction("--cpu-moe", "--place experts=gpu", "all experts are the CPU's");
        }
        let has_no_networks = parts.ffn == Some(Side::Host) && parts.experts != Some(Side::Device);
        if self.flags.gpu_batch.is_some() && has_no_networks {
            return contradiction(
                "--gpu-batch",
                "--place ffn=cpu",
                "the GPU has no feed-forward networks",
            );
        }
        Ok(request)
    }

    /// Returns the options of stored measurements.
    ///
    /// # Errors
    /// Flags of measurements that nothing asks for.
    pub(super) fn measurements(&self) -> Result<Measurements, Failure> {
        let chooses = match (self.flags.gpu_layers, self.flags.device) {
            (_, Some(Device::Cpu)) => false,
            _ if self.group_size().is_some() => false,
            (Some(layers), _) => layers == DeviceLayers::Auto,
            (None, None | Some(Device::Auto)) => self.parting_flag().is_none(),
            (None, Some(Device::Cuda { .. })) => false,
        };
        if self.flags.bandwidths.is_some() && !chooses {
            return Err(Failure::usage(
                "`--bandwidths` does nothing here: the options fix the GPU's part of the model",
            )
            .hint("`-ngl auto` chooses by bandwidths"));
        }
        let is_made_again = self.flags.measure_again == Some(true);
        if is_made_again && !chooses && self.flags.gpu_batch != Some(BatchThreshold::Measured) {
            return Err(
                Failure::usage("`--measure-again` does nothing here: nothing is measured")
                    .hint("`-ngl auto` and `--gpu-batch auto` choose by measurements"),
            );
        }
        Ok(Measurements {
            folder: cache_folder(),
            is_made_again,
            bandwidths: self.flags.bandwidths,
        })
    }

    fn placement_request(&self) -> PlacementRequest {
        PlacementRequest {
            layers: self.flags.gpu_layers.unwrap_or(DeviceLayers::All),
            n_host_experts: if self.flags.cpu_moe == Some(true) {
                usize::MAX
            } else {
                self.flags.n_cpu_moe.unwrap_or(0)
            },
            parts: self.flags.place.unwrap_or_default(),
            threshold: self.flags.gpu_batch.unwrap_or(BatchThreshold::Tokens(1)),
        }
    }

    /// Returns the flag that gives parts of the GPU's layers to the CPU, if there is one.
    fn parting_flag(&self) -> Option<&'static str> {
        [
            (self.flags.cpu_moe == Some(true), "--cpu-moe"),
            (self.flags.n_cpu_moe.is_some(), "--n-cpu-moe"),
            (self.flags.place.is_some(), "--place"),
            (self.flags.gpu_batch.is_some(), "--gpu-batch"),
        ]
        .into_iter()
        .find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Where to compute.
    ///
    /// # Errors
    /// Numbers of layers that no device gets, and options that contradict each other.
    pub(crate) fn device(&self) -> Result<Device, Failure> {
        let contradiction = |device: &str| {
            let flag = match self.flags.gpu_layers {
                Some(layers) if layers != DeviceLayers::Auto => format!("-ngl {}", typed(layers)),
                _ => self.parting_flag().unwrap_or("-ngl auto").to_owned(),
            };
            Failure::usage(format!("`{flag}` and `--device {device}` contradict each other"))
        };
        let first_gpu = Device::Cuda { ordinal: 0 };
        if let Some(n_gpus) = self.group_size() {
            return match self.flags.device {
                Some(Device::Cpu) => Err(Failure::usage(format!(
                    "`--tensor-parallel-size {n_gpus}` and `--device cpu` contradict each other"
                ))),
                Some(device @ Device::Cuda { .. }) => Ok(device),
                _ => Ok(first_gpu),
            };
        }
        match (self.flags.gpu_layers, self.flags.device) {
            (None | Some(DeviceLayers::Auto), Some(Device::Cpu)) if self.parting_flag().is_some() => {
                Err(contradiction("cpu"))
            }
            (None | Some(DeviceLayers::Auto), None) if self.parting_flag().is_some() => {
                Ok(gpu_or_cpu(self.parting_flag().unwrap_or_default()))
            }
            // Without a driver there is nothing to try, and no note is due, since no GPU was requested.
            (None, None) if !tokenmill::gpu::has_gpu_driver() => Ok(Device::Cpu),
            (None | Some(DeviceLayers::Auto), device) => Ok(device.unwrap_or(Device::Auto)),
            (Some(NO_LAYERS), Some(Device::Cuda { .. })) => Err(contradiction("cuda")),
            (Some(NO_LAYERS), _) => match self.parting_flag() {
                Some(flag) => Err(Failure::usage(format!(
                    "`-ngl 0` and `{flag}` contradict each other: the GPU has no layers"
                ))),
                None => Ok(Device::Cpu),
            },
            (Some(_), Some(Device::Cpu)) => Err(contradiction("cpu")),
            (Some(layers), None) => Ok(gpu_or_cpu(&format!("-ngl {}", typed(layers)))),
            (Some(_), Some(device)) => Ok(device),
        }
    }

    /// Returns the number of GPUs that compute the model together, if there are several.
    pub(crate) fn group_size(&self) -> Option<usize> {
        self.flags.tensor_parallel_size.filter(|&n_gpus| n_gpus > 1)
    }

    /// Whether several devices are asked to compute the model together.
    pub(crate) fn is_divided(&self) -> bool {
        let divides = |layers| layers != DeviceLayers::All && layers != NO_LAYERS;
        self.parting_flag().is_some()
            || self.group_size().is_some()
            || self.flags.gpu_layers.is_some_and(divides)
    }
}

/// `-ngl 0`.
const NO_LAYERS: DeviceLayers = DeviceLayers::Last(0);

/// Returns the value of `-ngl` in its typed form.
fn typed(layers: DeviceLayers) -> String {
    match layers {
        DeviceLayers::All => "all".to_owned(),
        DeviceLayers::Auto => "auto".to_owned(),
        DeviceLayers::Last(n) => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        load: LoadArgs,
    }

    #[test]
    fn layers_and_device_agree_or_are_refused() {
        let check = |args: &[&str], expected: Option<Device>| {
            let command = Command::parse_from([&["tokenmill"], args].concat());
            assert_eq!(command.load.device().ok(), expected, "{args:?}");
        };
        let first = Some(Device::Cuda { ordinal: 0 });
        // Without a GPU the CPU computes requests for one, except those of `--device`.
        let here = if tokenmill::gpu::has_gpu() {
            first
        } else {
            Some(Device::Cpu)
        };
        check(&["--device", "auto"], Some(Device::Auto));
        check(&["--device", "cuda:2"], Some(Device::Cuda { ordinal: 2 }));
        check(&["--gpu-layers", "0"], Some(Device::Cpu));
        check(&["--gpu-layers", "0", "--device", "auto"], Some(Device::Cpu));
        check(&["--gpu-layers", "99"], here);
        check(&["--gpu-layers", "all", "--device", "cuda"], first);
        check(&["--gpu-layers", "0", "--device", "cuda"], None);
        check(&["--gpu-layers", "all", "--device", "cpu"], None);
        check(&["--gpu-layers", "12"], here);
        check(&["--gpu-layers", "12", "--device", "cpu"], None);
        check(&["--cpu-moe"], here);
        check(&["--cpu-moe", "--device", "cpu"], None);
        check(&["--cpu-moe", "--gpu-layers", "0"], None);
        check(
            &["--place", "ffn=gpu,attn=cpu", "--device", "cuda:1"],
            Some(Device::Cuda { ordinal: 1 }),
        );
        check(&["--gpu-batch", "32", "--gpu-layers", "auto"], here);
    }

    #[test]
    fn flags_of_measurements_are_for_what_is_measured() {
        const BANDWIDTHS: &str = "--bandwidths=gpu=900,cpu=40,link=25,crossing=15";
        let check = |args: &[&str], expected: bool| {
            for (flag, expected) in [
                (BANDWIDTHS, expected),
                ("--measure-again", expected || args.contains(&"auto")),
            ] {
                let command = Command::parse_from([&["tokenmill", flag], args].concat());
                assert_eq!(command.load.measurements().is_ok(), expected, "{flag} {args:?}");
            }
        };
        check(&[], true);
        check(&["--device", "auto"], true);
        check(&["--gpu-layers", "auto"], true);
        check(&["--gpu-layers", "auto", "--device", "cuda"], true);
        check(&["--device", "cuda"], false);
        check(&["--device", "cpu"], false);
        check(&["--gpu-layers", "4"], false);
        check(&["--gpu-layers", "0"], false);
        check(&["--cpu-moe"], false);
        check(&["--gpu-batch", "auto"], false);
        check(&["--gpu-batch", "4"], false);
        check(&["--tensor-parallel-size", "2"], false);
    }
}
