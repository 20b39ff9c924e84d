//! Attention of prompts through [`Ops::attention`]: runs of tokens have separate kernels, whose results are those of single tokens.

use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup};
use tokenmill_cuda_exec::{
    AttentionScratch, AttentionStep, Buffer, Device, KvStore, Ops, PrefillTiles, ScratchNeeds, StepPlaces,
    TokenRuns,
};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::Random;

use crate::grid::pairs;

/// Number of tokens of a prompt.
const N_PROMPT: usize = 37;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;

/// Makes a store of these types and widths with the keys and values of some tokens of one sequence, in order of pages.
fn filled(
    device: &Device,
    ops: &Ops,
    types: [KvType; 2],
    dims: [usize; 2],
    n_kv_heads: usize,
    n_tokens: usize,
) -> KvStore {
    let shape = KvLayerShape {
        n_kv_heads,
        head_dim_k: dims[0],
        head_dim_v: dims[1],
        has_values_in_keys: false,
    };
    let layout = KvLayout {
        layers: vec![shape],
        groups: vec![PageGroup::Main],
        n_pages: n_tokens.div_ceil(PAGE_TOKENS),
        n_host_pages: 0,
        n_window_pages: 0,
        n_window_host_pages: 0,
        key_type: types[0],
        value_type: types[1],
    };
    let mut store = KvStore::new(device, &layout).unwrap();
    let mut random = Random::new(17);
    let tokens: Vec<u32> = (0..n_tokens as u32).collect();
    let places = device.upload("positions", &tokens).unwrap();
    let places = StepPlaces {
        positions: places.view(),
        slots: places.view(),
    };
    let [keys, values] = dims.map(|dim| {
        let numbers = random.values(n_tokens * n_kv_heads * dim);
        device.upload("keys and values", &numbers).unwrap()
    });
    ops.store_kv(places, [keys.view(), values.view()], store.layer_mut(0))
        .unwrap();
    store
}

/// The output of attention, and the names of the kernels launched for it.
struct Attended {
    output: Vec<f32>,
    kernels: Vec<String>,
}

impl Attended {
    #[track_caller]
    fn assert_by(&self, tiles: Option<PrefillTiles>) {
        let [_, kernel] = tiles.expect("there is a kernel for runs").names();
        assert_eq!(self.kernels, [kernel]);
    }

    /// Returns the largest difference between two outputs.
    fn difference(&self, others: &Self) -> f32 {
        (self.output.iter().zip(&others.output)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()))
    }
}

/// Runs the attention of the last `n_new` of `n_tokens`, as one run and token by token.
fn attend(types: [KvType; 2], dims: [usize; 2], window: Option<usize>, lens: [usize; 2]) -> [Attended; 2] {
    attend_with(types, dims, [N_HEADS, N_KV_HEADS], window, Some(3.0), lens)
}

/// Does the same with numbers of heads and a cap.
fn attend_with(
    types: [KvType; 2],
    dims: [usize; 2],
    [n_heads, n_kv_heads]: [usize; 2],
    window: Option<usize>,
    softcap: Option<f32>,
    [n_new, n_tokens]: [usize; 2],
) -> [Attended; 2] {
    let simulator = Simulator::new(&SimOptions::default());
    let device = simulator.device();
    let mut ops = Ops::load(&device).unwrap();
    ops.load_store(types).unwrap();
    ops.load_runs(types).unwrap();
    let store = filled(&device, &ops, types, dims, n_kv_heads, n_tokens);
    let attended = AttentionShape {
        n_heads,
        n_kv_heads,
        head_dim_k: dims[0],
        head_dim_v: dims[1],
    };
    let n_pages = n_tokens.div_ceil(PAGE_TOKENS);
    let needs = ScratchNeeds::of([(attended, false)].into_iter(), n_pages);
    let mut scratch = AttentionScratch::new(&device, n_new, 1, needs).unwrap();
    let attention: Attention<Buffer<f32>> = Attention {
        layer_idx: 0,
        n_heads,
        scale: (dims[0] as f32).powf(-0.5),
        is_causal: true,
        window,
        is_chunked: false,
        softcap,
        sinks: None,
        slopes: None,
    };
    let upload = |values: &[u32]| device.upload("step inputs", values).unwrap();
    let positions = upload(&((n_tokens - n_new) as u32..n_tokens as u32).collect::<Vec<_>>());
    let (seq_of, seq_starts) = (upload(&vec![0; n_new]), upload(&[0, n_new as u32]));
    let page_starts = upload(&[0, n_pages as u32]);
    let pages = upload(&(0..n_pages as u32).collect::<Vec<_>>());
    let step = AttentionStep {
        positions: positions.view(),
        seq_of: seq_of.view(),
        page_starts: page_starts.view(),
        pages: pages.view(),
        max_pages: n_pages,
        is_one_each: false,
        runs: Some(TokenRuns {
            seq_starts: seq_starts.view(),
            longest: n_new,
            has_single: false,
            n_leading_single: 0,
        }),
        shared: None,
    };
    let queries = Random::new(5).values(n_new * n_heads * dims[0]);
    let q = device.upload("queries", &queries).unwrap();
    [false, true].map(|is_batch_invariant| {
        ops.set_batch_invariance(is_batch_invariant);
        let before = simulator.counters();
        let mut output = device.alloc("output", n_new * n_heads * dims[1]).unwrap();
        ops.attention(
            &attention,
            &step,
            store.layer(0),
            q.view(),
            output.view_mut(),
            None,
            &mut scratch,
        )
        .unwrap();
        let output = device.download(output.view()).unwrap();
        let n_before = |name: &String| before.get(name).map_or(0, |(n_launches, _)| *n_launches);
        let kernels = (simulator.counters().into_iter())
            .filter(|(name, (n_launches, _))| *n_launches > n_before(name))
            .map(|(name, _)| name)
            .collect();
        Attended { output, kernels }
    })
}

#[test]
fn prompts_of_every_type_and_width_take_the_kernels_for_runs() {
    let types = KvType::ALL.map(|keys| KvType::ALL.map(|values| [keys, values]));
    let types = (types.concat().into_iter()).filter(|types| KvStore::takes(*types));
    let shapes = [
        ([64, 64], None),
        ([128, 96], Some(9)),
        ([192, 128], None),
        ([256, 256], Some(20)),
    ];
    let all = types.flat_map(|types| shapes.map(|shape| (types, shape)));
    for (types, (dims, window)) in pairs("prompts of every type and width", all) {
        let [runs, singles] = attend(types, dims, window, [N_PROMPT; 2]);
        runs.assert_by(PrefillTiles::of(types, dims[0].max(dims[1])));
        let worst = runs.difference(&singles);
        assert!(worst < 6e-6, "{types:?} {dims:?}: {worst}");
    }
}

#[test]
fn wider_heads_take_the_kernel_for_single_tokens() {
    let [runs, singles] = attend([KvType::F16; 2], [264, 40], None, [N_PROMPT; 2]);
    assert_eq!(runs.kernels, singles.kernels);
    assert_eq!(runs.output, singles.output);
}

#[test]
fn a_short_run_behind_a_context_takes_the_kernel_that_splits_it() {
    for types in [
        [KvType::F16; 2],
        [KvType::F32; 2],
        [KvType::Q8_0; 2],
        [KvType::E4M3; 2],
    ] {
        for dims in [[64, 64], [256, 256]] {
            let [runs, singles] = attend(types, dims, None, [5, 100]);
            assert_eq!(runs.kernels, singles.kernels, "{types:?} {dims:?}");
            assert_eq!(runs.output, singles.output, "{types:?} {dims:?}");
        }
        // The window hides most of the context.
        let [runs, _] = attend(types, [64, 64], Some(20), [5, 100]);
        runs.assert_by(PrefillTiles::of(types, 64));
        // As many as fill a GPU.
        let [runs, _] = attend(types, [64, 64], None, [128, 140]);
        runs.assert_by(PrefillTiles::of(types, 64));
    }
}

#[test]
fn plain_prompts_take_matrix_operations_of_warpgroups() {
    // Widths, heads and KV heads, a window, and tokens of a prompt, the last of which are new.
    for (dims, heads, window, lens) in [
        ([128, 128], [4, 1], None, [60, 60]),
        ([128, 128], [2, 2], None, [150, 200]),
        ([128, 96], [8, 1], Some(40), [40, 333]),
        ([64, 64], [4, 2], None, [130, 130]),
        ([40, 64], [2, 2], Some(9), [130, 145]),
    ] {
        let [runs, singles] = attend_with([KvType::F16; 2], dims, heads, window, None, lens);
        let widest = dims[0].max(dims[1]);
        runs.assert_by(PrefillTiles::wide().find(|tiles| tiles.takes(widest)));
        // Queries and weights are rounded to f16, which the kernel of single tokens does not.
        let worst = runs.difference(&singles);
        assert!(worst < 1e-3, "{dims:?} {heads:?} {lens:?}: {worst}");
    }
    // Fewer rows than a warpgroup multiplies, a cap, wider heads, and other types.
    let halves = [KvType::F16; 2];
    for (types, dim, n_tokens, cap) in [
        (halves, 64, 63, None),
        (halves, 64, 64, Some(3.0)),
        (halves, 192, 64, None),
        ([KvType::F32; 2], 64, 64, None),
    ] {
        let [runs, _] = attend_with(types, [dim; 2], [1, 1], None, cap, [n_tokens; 2]);
        runs.assert_by(PrefillTiles::of(types, dim));
    }
}
