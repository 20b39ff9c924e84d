//! [`ModelOptions`] of a load, the limits that follow from them, and [`plan`]: the memory that the load will take.
//!
//! Invariant: a load allocates exactly what its plan reports, since both take the same weights and the same slots.

use std::cell::OnceCell;

use tokenmill_backend::{
    Allocation, ExecutorLimits, KvLayout, KvType, Measure, MemoryPlan, NetworkPart, PAGE_TOKENS, PageGroup,
    Side, StateLayout, Weigh, WindowGroup,
    program::{Fusion, Prepared},
};

use crate::{Descriptor, LoadError, WeightSource, network::Network, nextn::SharedWeights};

/// Options of a load. The default serves one short conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Maximum positions of a sequence; `None` uses the trained context length.
    pub n_ctx: Option<usize>,
    /// Maximum tokens of a batch, at most 2^20.
    pub max_batch_tokens: usize,
    /// Maximum sequences of a batch.
    pub max_batch_seqs: usize,
    /// Maximum logit rows of a batch.
    pub max_logit_rows: usize,
    /// Number of KV pages; `None` is enough for one sequence of full length. With [`WindowPages::Own`], a
    /// model with a window in every layer uses at most the number described there.
    pub n_pages: Option<usize>,
    /// Pages in the host tier, to which pages of the pool can be moved. If layers with a window have their
    /// own pages, the host tier has the same number again for them.
    pub n_host_pages: usize,
    /// How pages of layers with a sliding window are allocated.
    pub window_pages: WindowPages,
    /// Slots for recurrent states, in models that have them: one per sequence, and the rest for snapshots of
    /// prompt prefixes. `None` means two per sequence and two more.
    pub n_states: Option<usize>,
    /// Type of the keys in the KV cache, and of the values unless `kv_value_type` is set.
    pub kv_type: KvType,
    /// Type of the values in the KV cache, if it differs from that of the keys.
    pub kv_value_type: Option<KvType>,
    /// Bytes to reserve on the device for adapters loaded after the network.
    pub adapter_bytes: usize,
    /// The operations of the network's program that are fused: all, or none in order to test a device.
    pub fusion: Fusion,
}

/// How pages of layers with a sliding window are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WindowPages {
    /// All layers share pages for the whole context: one page table serves the network. For callers that
    /// number pages by hand.
    #[default]
    Shared,
    /// Enough pages for the windows of all sequences, and as many again for prompts that continue from there.
    /// If other layers have no window, these pages form a separate group with its own tables.
    Own,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            n_ctx: None,
            max_batch_tokens: 512,
            max_batch_seqs: 16,
            max_logit_rows: 16,
            n_pages: None,
            n_host_pages: 0,
            window_pages: WindowPages::default(),
            n_states: None,
            kv_type: KvType::F16,
            kv_value_type: None,
            adapter_bytes: 0,
            fusion: Fusion::All,
        }
    }
}

/// Largest accepted batch. The activations of a larger one would take terabytes.
const MAX_BATCH_TOKENS: usize = 1 << 20;

/// Writes a network's program and prepares it for all steps.
pub(crate) fn prepare(
    descriptor: &Descriptor,
    network: &Network,
    limits: &ExecutorLimits,
    fusion: Fusion,
) -> Prepared {
    let program = network.write(descriptor);
    let sizes = [descriptor.n_vocab, descriptor.n_embd];
    Prepared::new(&program, limits, sizes, fusion)
}

/// Plans a load by a dry run, so errors in the weights, and a split that cannot be, are found before anything is uploaded.
pub(crate) fn plan(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    backend: &dyn Weigh,
    options: &ModelOptions,
) -> Result<MemoryPlan, LoadError> {
    plan_sharing(descriptor, source, backend, options, None)
}

/// Does the same as [`plan`], for a network that may use another one's embedding and head.
pub(crate) fn plan_sharing(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    backend: &dyn Weigh,
    options: &ModelOptions,
    shared: Option<SharedWeights>,
) -> Result<MemoryPlan, LoadError> {
    descriptor.validate()?;
    let limits = limits(descriptor, options)?;
    // Both sides have the same program.
    let prepared = OnceCell::new();
    let on_host = if backend.is_split() {
        Some(Box::new(plan_of_side(
            descriptor,
            source,
            backend,
            options,
            &limits,
            (Side::Host, shared, &prepared),
        )?))
    } else {
        None
    };
    Ok(MemoryPlan {
        on_host,
        ..plan_of_side(
            descriptor,
            source,
            backend,
            options,
            &limits,
            (Side::Device, shared, &prepared),
        )?
    })
}

fn plan_of_side(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    backend: &dyn Weigh,
    options: &ModelOptions,
    limits: &ExecutorLimits,
    (side, shared, prepared): (Side, Option<SharedWeights>, &OnceCell<Prepared>),
) -> Result<MemoryPlan, LoadError> {
    let mut weights = Measure::new(backend, side);
    let network = Network::load(
        descriptor,
        source,
        limits.n_ctx,
        &mut weights,
        shared,
        &mut |_| {},
    )?;
    let mut activations = Measure::new(backend, side);
    let prepared = prepared.get_or_init(|| prepare(descriptor, &network, limits, options.fusion));
    let used = backend.slots_used(side, prepared)?;
    let slots = prepared.slots().iter().zip(used);
    activations.add_slots(slots.filter_map(|(slot, is_used)| is_used.then_some(slot)));
    let mut group_bytes = [0usize; PageGroup::ALL.len()];
    let kv = kv_layout(descriptor, limits, options);
    for (kv_idx, (&layer, &group)) in kv.layers.iter().zip(&kv.groups).enumerate() {
        let layout = KvLayout {
            layers: vec![layer],
            groups: vec![group],
            ..kv.clone()
        };
        let n_bytes = backend.bytes_at(side, NetworkPart::Kv(kv_idx), &Allocation::KvPage(&layout));
        let of_group = &mut group_bytes[group.index()];
        *of_group = of_group.saturating_add(n_bytes);
    }
    let [kv_page_bytes, window_page_bytes] = group_bytes;
    let n_pages = limits.n_pages + limits.n_host_pages;
    let n_window_host_pages = limits.window_group.map_or(0, |group| group.n_host_pages);
    let n_window_pages = limits.window_group.map_or(0, |group| group.n_pages) + n_window_host_pages;
    let bytes_of_pages = |n: usize, n_window: usize| {
        (kv_page_bytes.saturating_mul(n)).saturating_add(window_page_bytes.saturating_mul(n_window))
    };
    let states = state_layout(descriptor, limits);
    let state_bytes = (states.layers.iter().enumerate())
        .map(|(state_idx, &layer)| {
            let layout = StateLayout {
                layers: vec![layer],
                n_states: states.n_states,
            };
            backend.bytes_at(side, NetworkPart::State(state_idx), &Allocation::State(&layout))
        })
        .fold(0, usize::saturating_add);
    let shape = descriptor.shape();
    let workspace = Allocation::Workspace(&shape, limits);
    Ok(MemoryPlan {
        states_bytes: state_bytes.saturating_mul(limits.n_states),
        state_bytes,
        n_states: limits.n_states,
        weights_bytes: weights.n_bytes(),
        kv_bytes: bytes_of_pages(n_pages, n_window_pages),
        host_tier_bytes: bytes_of_pages(limits.n_host_pages, n_window_host_pages),
        kv_page_bytes,
        n_pages,
        window_page_bytes,
        n_window_pages,
        activations_bytes: activations.n_bytes(),
        workspace_bytes: backend.bytes_at(side, NetworkPart::Common, &workspace),
        adapters_bytes: match side {
            Side::Host => 0,
            Side::Device => options.adapter_bytes,
        },
        on_host: None,
    })
}

pub(crate) fn limits(descriptor: &Descriptor, options: &ModelOptions) -> Result<ExecutorLimits, LoadError> {
    let n_ctx = options.n_ctx.unwrap_or(descriptor.n_ctx_train);
    let positive = |option, found| {
        if found > 0 {
            return Ok(());
        }
        Err(LoadError::BadOption {
            option,
            found,
            expected: "at least 1".to_owned(),
        })
    };
    positive("n_ctx", n_ctx)?;
    positive("max_batch_tokens", options.max_batch_tokens)?;
    positive("max_batch_seqs", options.max_batch_seqs)?;
    positive("max_logit_rows", options.max_logit_rows)?;
    let is_encoder = descriptor.is_encoder();
    // An encoder processes a whole sequence in one step.
    let max_batch_tokens = if is_encoder {
        options.max_batch_tokens.max(n_ctx)
    } else {
        options.max_batch_tokens
    };
    let max_batch_seqs = options.max_batch_seqs.min(max_batch_tokens);
    let n_pages = if is_encoder {
        // Room for two steps in flight.
        2 * (max_batch_tokens.div_ceil(PAGE_TOKENS) + max_batch_seqs)
    } else {
        options.n_pages.unwrap_or_else(|| n_ctx.div_ceil(PAGE_TOKENS))
    };
    positive("n_pages", n_pages)?;
    let kv_window = descriptor.kv_window();
    let widest = match options.window_pages {
        WindowPages::Own if !is_encoder => descriptor.kv_windows().into_iter().flatten().max(),
        _ => None,
    };
    let n_window_pages = widest.map(|window| {
        let of_sequences = max_batch_seqs.saturating_mul(2 * (window.div_ceil(PAGE_TOKENS) + 2));
        // Two steps may be in flight.
        n_pages.min(of_sequences.saturating_add(2 * max_batch_tokens.div_ceil(PAGE_TOKENS)))
    });
    let window_group = widest.zip(n_window_pages).filter(|_| kv_window.is_none());
    let n_pages = n_window_pages.filter(|_| kv_window.is_some()).unwrap_or(n_pages);
    // Slots are numbered with 32 bits, and one number is reserved for unmapped pages.
    let max_pages = u32::MAX as usize / PAGE_TOKENS;
    for (option, found, maximum) in [
        ("max_batch_tokens", max_batch_tokens, MAX_BATCH_TOKENS),
        // Checked before the number of pages, which depends on it.
        ("n_ctx", n_ctx, max_pages * PAGE_TOKENS),
        (
            "n_ctx",
            n_ctx,
            descriptor.n_learned_positions.unwrap_or(usize::MAX),
        ),
        ("n_pages", n_pages, max_pages),
        ("n_host_pages", options.n_host_pages, max_pages),
        ("n_states", options.n_states.unwrap_or(0), max_pages),
        ("max_batch_seqs", options.max_batch_seqs, max_pages),
    ] {
        if found > maximum {
            return Err(LoadError::BadOption {
                option,
                found,
                expected: format!("at most {maximum}"),
            });
        }
    }
    let n_states = if descriptor.state_layers().next().is_none() {
        0
    } else {
        options.n_states.unwrap_or(2 * max_batch_seqs + 2)
    };
    if n_states < max_batch_seqs && descriptor.state_layers().next().is_some() {
        return Err(LoadError::BadOption {
            option: "n_states",
            found: n_states,
            expected: format!("at least one for each of {max_batch_seqs} sequences"),
        });
    }
    Ok(ExecutorLimits {
        n_vocab: descriptor.n_vocab,
        n_embd: descriptor.output_width(),
        n_ctx,
        n_pages,
        n_host_pages: if is_encoder { 0 } else { options.n_host_pages },
        max_batch_tokens,
        max_batch_seqs,
        max_logit_rows: options.max_logit_rows.min(max_batch_tokens),
        kv_window,
        window_group: window_group.map(|(window, n_pages)| WindowGroup {
            window,
            n_pages,
            n_host_pages: options.n_host_pages,
        }),
        pooling: descriptor.pooling.as_ref().map(|pooling| pooling.kind),
        is_encoder,
        n_states,
    })
}

pub(crate) fn state_layout(descriptor: &Descriptor, limits: &ExecutorLimits) -> StateLayout {
    StateLayout {
        layers: descriptor.state_layers().collect(),
        n_states: limits.n_states,
    }
}

pub(crate) fn kv_layout(
    descriptor: &Descriptor,
    limits: &ExecutorLimits,
    options: &ModelOptions,
) -> KvLayout {
    let group_of = |window: Option<usize>| match (limits.window_group, window) {
        (Some(_), Some(_)) => PageGroup::Window,
        _ => PageGroup::Main,
    };
    KvLayout {
        layers: descriptor.kv_layers(),
        groups: descriptor.kv_windows().into_iter().map(group_of).collect(),
        n_pages: limits.n_pages,
        n_host_pages: limits.n_host_pages,
        n_window_pages: limits.window_group.map_or(0, |group| group.n_pages),
        n_window_host_pages: limits.window_group.map_or(0, |group| group.n_host_pages),
        key_type: options.kv_type,
        value_type: options.kv_value_type.unwrap_or(options.kv_type),
    }
}
