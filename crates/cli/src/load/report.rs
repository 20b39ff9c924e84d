//! Loads a model with a progress bar, and reports on the load.
//!
//! Invariant: a program with a log reports there, any other on standard error.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    time::Duration,
};

use tokenmill::{
    Error, KvCache, LoadOptions, Model,
    gpu::GpuSteps,
    load::{Compute, LoadPlan, Loaded, LoadedDevice, ModelSource},
    machine::n_processors,
    placement::{MeasuredWhen, SplitPlan},
    speculation::DraftFacts,
};
use tokenmill_model::{LoadProgress, Model as Network, ModelOptions};

use crate::{
    failure::Failure,
    memory_words::{plan_text, warning},
    note::note,
    numbers::counted,
    progress,
    visible::visible,
};

/// Loading kernels for this long is mentioned: the driver was probably compiling them.
const LONG_LOAD: Duration = Duration::from_secs(1);

/// Finds, opens and loads a model, with a progress bar.
///
/// # Errors
/// Returns the errors of [`LoadOptions::load`].
pub(crate) fn load(path: &Path, options: &LoadOptions) -> Result<Model, Failure> {
    let source = ModelSource::find(path)?;
    load_opened(&source, &options.open_network(&source)?, options)
}

/// Loads an opened model, as [`load`] does.
///
/// # Errors
/// Returns the errors of [`LoadOptions::load_opened`].
pub(crate) fn load_opened(
    source: &ModelSource,
    network: &Network,
    options: &LoadOptions,
) -> Result<Model, Failure> {
    let model = with_progress(|on_progress| options.load_opened(source, network, on_progress))?;
    tell_about_threads(model.device(), &options.compute);
    if let Some(draft) = model.draft() {
        say_draft(draft, model.n_ctx());
    }
    if let Some(text) = about_cut_context(options.n_ctx, model.n_ctx()) {
        tell(&text);
    }
    if let Some(text) = about_fewer_contexts(options.kv_cache, &model) {
        tell(&text);
    }
    tell_about_load(model.device(), model.n_ctx(), network.descriptor().n_ctx_train);
    tell_about_invariance(model.device(), &options.compute);
    tell_about_measurements(model.device(), &options.compute);
    Ok(model)
}

/// Loads a network without words and engine, as [`load`] does.
///
/// # Errors
/// Returns the errors of [`tokenmill::load::load`].
pub(crate) fn load_network(
    network: &Network,
    options: &ModelOptions,
    compute: &Compute,
) -> Result<Loaded, Failure> {
    let loaded = with_progress(|on_progress| tokenmill::load::load(network, options, compute, on_progress))?;
    let n_ctx = loaded.executor.limits().n_ctx;
    tell_about_threads(&loaded.device, compute);
    tell_about_load(&loaded.device, n_ctx, network.descriptor().n_ctx_train);
    tell_about_invariance(&loaded.device, compute);
    tell_about_measurements(&loaded.device, compute);
    Ok(loaded)
}

fn with_progress<T>(
    load: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<T, tokenmill::Error>,
) -> Result<T, Failure> {
    // The bar ticks, and would write over the plan of a split, which is shown before the first byte.
    let mut bar = None;
    let loaded = load(&mut |progress| {
        let bar = bar.get_or_insert_with(|| progress::bytes("loading"));
        progress::set_bytes(bar, progress.n_bytes_done, progress.n_bytes_total);
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(loaded?)
}

/// Says where `--batch-invariant` is nothing new.
fn tell_about_invariance(device: &LoadedDevice, compute: &Compute) {
    if compute.gpu.is_batch_invariant && matches!(device, LoadedDevice::Cpu { .. }) {
        tell("`--batch-invariant` changes nothing on the CPU, where results never depend on the batch");
    }
}

/// Says where `--bandwidths` or `--measure-again` came to nothing, since this machine and this model left nothing to choose.
fn tell_about_measurements(device: &LoadedDevice, compute: &Compute) {
    if let Some(text) = about_measurements(device, compute) {
        tell(&text);
    }
}

fn about_measurements(device: &LoadedDevice, compute: &Compute) -> Option<String> {
    let measurements = &compute.measurements;
    let flag = match (measurements.bandwidths, measurements.is_made_again) {
        (Some(_), _) => "--bandwidths",
        // While other models compute nothing is measured again, which the documentation says.
        (None, true) if !compute.is_quiet => "--measure-again",
        (None, _) => return None,
    };
    let reason = match device {
        LoadedDevice::Cpu {
            passed_over: Some(Error::CpuIsQuicker { .. }),
        } => return None,
        LoadedDevice::Split {
            bandwidths_known,
            steps_known,
            ..
        } => {
            // Given bandwidths have no part in the measurements of steps.
            let steps_again =
                measurements.bandwidths.is_none() && matches!(steps_known, MeasuredWhen::Now { .. });
            if bandwidths_known.is_some() || steps_again {
                return None;
            }
            "the requested split fits, so nothing was chosen by bandwidths"
        }
        LoadedDevice::Cpu { .. } => "the CPU computes all of the model",
        _ => "all of the model is on the GPU",
    };
    Some(format!("`{flag}` changed nothing: {reason}"))
}

/// Explains that a model has a smaller context than requested, as encoders have.
pub(crate) fn about_cut_context(asked: Option<usize>, n_ctx: usize) -> Option<String> {
    let asked = asked.filter(|&asked| asked > n_ctx)?;
    Some(format!(
        "the context is {n_ctx} tokens instead of {asked}: this encoder was trained for no more"
    ))
}

/// Explains that memory allows fewer contexts than a server's default.
fn about_fewer_contexts(asked: KvCache, model: &Model) -> Option<String> {
    let KvCache::Fitting(most) = asked else {
        return None;
    };
    let limits = model.engine().limits();
    if limits.is_encoder {
        return None;
    }
    let (kv_tokens, n_ctx) = (limits.kv_tokens(), model.n_ctx());
    let n_contexts = kv_tokens / n_ctx.max(1);
    (n_contexts < most).then(|| {
        format!(
            "memory holds only {} of {n_ctx} tokens instead of {most}, shared by all requests; `-c N` makes them smaller",
            counted(n_contexts, "context")
        )
    })
}

/// Warns about a context that is longer than the model was trained for.
pub(crate) fn about_long_context(n_ctx: usize, n_ctx_train: usize) -> Option<String> {
    (n_ctx > n_ctx_train).then(|| {
        format!(
            "the context of {n_ctx} tokens is longer than the {n_ctx_train} that the model was trained for; beyond them its \
             text may make no sense"
        )
    })
}

/// Reports a context longer than the model's own, the devices that compute, and a slow compilation of kernels.
fn tell_about_load(device: &LoadedDevice, n_ctx: usize, n_ctx_train: usize) {
    if let Some(text) = about_long_context(n_ctx, n_ctx_train) {
        tell(&text);
    }
    if let LoadedDevice::Split {
        gpu_steps,
        steps_known,
        ..
    } = device
        && *gpu_steps != GpuSteps::of_all(1)
    {
        tell(&about_gpu_steps(*gpu_steps, steps_known));
    }
    if let LoadedDevice::Group {
        without_nccl: Some(reason),
        ..
    } = device
    {
        tell(&format!(
            "the GPUs add up in the host's memory, slower than by NCCL: {reason}"
        ));
    }
    if matches!(device, LoadedDevice::Cuda { .. } | LoadedDevice::Group { .. }) {
        say(&format!("computing on {device}"));
    }
    match device {
        LoadedDevice::Cpu {
            passed_over: Some(reason),
        } => tell(&format!("computing on the CPU: {reason}")),
        LoadedDevice::Cuda { kernels_took, .. }
        | LoadedDevice::Group { kernels_took, .. }
        | LoadedDevice::Split { kernels_took, .. } => {
            if let Some(text) = about_long_load(*kernels_took) {
                tell(&text);
            }
        }
        _ => {}
    }
}

/// Shows the place of each part of a model before it is loaded.
pub(super) fn say_split(plan: &SplitPlan) {
    for line in plan.to_string().lines() {
        say(line);
    }
}

/// Reports the memory that a model will need on one device before it is loaded, and warns if it is too much.
pub(super) fn say_plan(plan: &LoadPlan<'_>) {
    let text = of_contexts(plan_text(plan.memory, plan.n_ctx), plan.n_contexts);
    let whose = if plan.is_on_gpu {
        "memory of the GPU"
    } else {
        "memory"
    };
    show(&format!("{whose}: {text}"));
    // A GPU with too little memory was refused before.
    if let Some(text) = warning(plan.memory).filter(|_| !plan.is_on_gpu) {
        tell(&text);
    }
}

/// A plan's words, which speak of one context, for the keys and values of several.
fn of_contexts(text: String, n_contexts: usize) -> String {
    match n_contexts {
        0 | 1 => text,
        n => {
            let text = text.replacen("with a context of", &format!("with {n} contexts of"), 1);
            text.replacen(" tokens:", " tokens each:", 1)
        }
    }
}

/// Warns if there are more threads than processors.
fn tell_about_threads(device: &LoadedDevice, compute: &Compute) {
    if let (LoadedDevice::Cpu { .. }, Some(text)) = (device, about_threads(compute)) {
        tell(&text);
    }
}

/// Returns the warning about more threads than processors.
pub(crate) fn about_threads(compute: &Compute) -> Option<String> {
    let n_processors = n_processors(&compute.places)?;
    let n_threads = compute.n_threads.filter(|&n_threads| n_threads > n_processors)?;
    Some(format!(
        "`-t {n_threads}` is more than the {} available and slower; leave `-t` out",
        counted(n_processors, "processor")
    ))
}

/// Reports the memory of a draft model, and the position at which its drafts end.
fn say_draft(draft: &DraftFacts, n_ctx: usize) {
    let plan = plan_text(&draft.memory, draft.n_ctx);
    if draft.is_own_layer {
        show(&format!("memory of the MTP layer ({}): {plan}", draft.name));
    } else {
        show(&format!("memory of the draft model {}: {plan}", draft.name));
    }
    if draft.n_ctx < n_ctx {
        tell(&format!(
            "the draft model or MTP layer was trained for {} tokens and drafts nothing after them",
            draft.n_ctx
        ));
    }
}

/// Which steps run on the GPU when both sides hold the weights, and how that is known.
fn about_gpu_steps(steps: GpuSteps, known: &MeasuredWhen) -> String {
    let what = match (steps.decode, steps.prompts) {
        (None, None) => {
            "the CPU computes all feed-forward networks: the longest steps measured were not faster on the GPU"
                .to_owned()
        }
        (Some(decode), Some(prompts)) if decode == prompts => {
            format!("the GPU computes its feed-forward networks in steps of {decode} tokens and more")
        }
        (decode, prompts) => {
            let of = |from: Option<usize>, unit: &str| match from {
                None => "never".to_owned(),
                Some(n) => format!("from {n} {unit} on"),
            };
            format!(
                "the GPU computes its feed-forward networks {} in steps that decode, and {} in others",
                of(decode, "sequences"),
                of(prompts, "tokens")
            )
        }
    };
    match known {
        MeasuredWhen::Given => what,
        MeasuredWhen::Before => format!("{what} ({known}; `--measure-again` measures again)"),
        _ => format!("{what} ({known})"),
    }
}

/// Explains a long load of kernels.
fn about_long_load(took: Duration) -> Option<String> {
    (took >= LONG_LOAD).then(|| {
        format!(
            "loading the kernels took {:.1} s; the driver usually keeps compiled kernels for the next start",
            took.as_secs_f64()
        )
    })
}

/// Reports normal events on standard error: in the log of a program that has one, else as a line.
fn say(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::info!("{text}");
    } else {
        note!("{}", visible(text));
    }
}

/// Writes figures to the log, if there is one, or to a terminal.
fn show(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::info!("{text}");
    } else if io::stderr().is_terminal() {
        note!("{}", visible(text));
    }
}

/// Says something on standard error: in the log of a program that has one, else as a line.
pub(super) fn tell(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        note!("{}", visible(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_the_gpu_are_told_with_how_they_are_known() {
        let check = |decode, prompts, known: MeasuredWhen, expected: &str| {
            let found = about_gpu_steps(GpuSteps { decode, prompts }, &known);
            assert_eq!(found, expected);
        };
        let now = || MeasuredWhen::Now { not_kept: None };
        check(
            Some(4),
            Some(4),
            MeasuredWhen::Given,
            "the GPU computes its feed-forward networks in steps of 4 tokens and more",
        );
        check(
            Some(8),
            None,
            now(),
            "the GPU computes its feed-forward networks from 8 sequences on in steps that decode, and never in others (measured now)",
        );
        check(
            None,
            None,
            MeasuredWhen::Before,
            "the CPU computes all feed-forward networks: the longest steps measured were not faster on the GPU (measured before; `--measure-again` measures again)",
        );
    }

    #[test]
    fn only_a_long_load_of_kernels_is_mentioned() {
        assert_eq!(about_long_load(Duration::ZERO), None);
        assert_eq!(about_long_load(Duration::from_millis(999)), None);
        assert!(about_long_load(LONG_LOAD).is_some_and(|text| text.contains(" 1.0 s;")));
        assert!(about_long_load(Duration::from_millis(12_340)).is_some_and(|text| text.contains(" 12.3 s;")));
    }
}
