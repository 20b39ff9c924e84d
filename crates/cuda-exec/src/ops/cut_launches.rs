//! Tests launches that are divided because a grid or a scratch has too few rows: they give the results of whole ones.

use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PageGroup};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::{SimOptions, Simulator};

use super::{
    AttentionScratch, AttentionStep, Ops, Product, QuantizedRows, ScratchNeeds, StepPlaces, TokenRuns,
};
use crate::{Buffer, Device, KvStore, MatrixUse, Uploader, driver::simulated};

const N_ROWS: usize = 7;

fn values(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0)
        .collect()
}

/// Returns a device, with grids of `max_grid_rows` rows.
fn ops(max_grid_rows: usize) -> (Device, Ops) {
    let device = simulated(&Simulator::new(&SimOptions::default()));
    let ops = Ops {
        max_grid_rows,
        ..Ops::load(&device).unwrap()
    };
    (device, ops)
}

/// Checks that `run` returns the same with grids of three rows as with large ones, with more launches.
fn check_cut(run: impl Fn(&Device, &Ops) -> Vec<f32>) {
    let [(whole, n_launches), (cut, n_cut_launches)] = [super::MAX_GRID_ROWS, 3].map(|max_grid_rows| {
        let (device, ops) = ops(max_grid_rows);
        let before = device.n_launches();
        (run(&device, &ops), device.n_launches() - before)
    });
    assert!(n_cut_launches > n_launches, "{n_cut_launches}");
    assert_eq!(cut, whole);
}

#[test]
fn rows_beyond_a_grid_are_joined() {
    check_cut(|device, ops| {
        let [left, right] = [5, 3].map(|width| device.upload("rows", &values(N_ROWS * width)).unwrap());
        let mut output = device.alloc("joined", N_ROWS * 8).unwrap();
        ops.join(N_ROWS, [left.view(), right.view()], [5, 3], output.view_mut())
            .unwrap();
        device.download(output.view()).unwrap()
    });
}

#[test]
fn rows_beyond_a_grid_are_quantized() {
    check_cut(|device, ops| {
        let rows = device.upload("rows", &values(N_ROWS * 64)).unwrap();
        let mut quantized = QuantizedRows::new(device, N_ROWS, 64).unwrap();
        ops.quantize(N_ROWS, 64, rows.view(), quantized.view_mut())
            .unwrap();
        let bytes = device.download(quantized.bytes.view()).unwrap();
        let scales = device.download(quantized.scales.view()).unwrap();
        let scales = scales.iter().map(|group| group.scale + f32::from(group.sum_low));
        bytes.into_iter().map(f32::from).chain(scales).collect()
    });
}

#[test]
fn heads_beyond_a_grid_are_multiplied() {
    const N_HEADS: usize = 3;
    const N_ROWS: usize = 130;
    check_cut(|device, ops| {
        let mut uploader = Uploader::new(device);
        let usage = MatrixUse {
            is_table: false,
            is_factor: false,
            is_of_experts: true,
        };
        let bytes: Vec<u8> = (values(N_HEADS * 4 * 6).iter())
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let matrix = uploader
            .upload(TensorType::F32, [N_HEADS * 4, 6], &bytes, usage)
            .unwrap();
        uploader.finish().unwrap();
        let input = device.upload("rows", &values(N_ROWS * N_HEADS * 6)).unwrap();
        let mut output = device.alloc("products", N_ROWS * N_HEADS * 4).unwrap();
        let product = Product {
            matrix: &matrix,
            bias: None,
            output: output.view_mut(),
        };
        ops.heads_linear([N_ROWS, N_HEADS], input.view(), None, product)
            .unwrap();
        device.download(output.view()).unwrap()
    });
    let refused = super::check_heads(super::MAX_GRID_ROWS + 1);
    assert!(refused.is_err_and(|error| error.to_string().contains("65536 heads")));
}

/// Attends from five tokens of as many sequences, or from runs of one token and a run of two, with scratch for the partial results of so
/// many tokens.
fn attend(is_latent: bool, has_runs: bool, n_scratch_tokens: usize) -> (Vec<f32>, u64) {
    const N_TOKENS: usize = 5;
    const N_HEADS: usize = 3;
    let (dim_k, dim_v) = (24, if is_latent { 16 } else { 24 });
    let device = simulated(&Simulator::new(&SimOptions::default()));
    let mut ops = Ops::load(&device).unwrap();
    ops.load_latent().unwrap();
    let shape = KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: dim_k,
        head_dim_v: dim_v,
        has_values_in_keys: is_latent,
    };
    let mut kv = KvStore::new(
        &device,
        &KvLayout {
            layers: vec![shape],
            groups: vec![PageGroup::Main],
            n_pages: N_TOKENS,
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: KvType::F16,
            value_type: KvType::F16,
        },
    )
    .unwrap();
    // The page of each sequence has five positions.
    for position in 0..5 {
        let keys = values((position + 1) * 100 + N_TOKENS * dim_k);
        // The kernel writes back the keys, so the values are rows of their own.
        let [rows, value_rows] =
            [(); 2].map(|()| device.upload("keys", &keys[(position + 1) * 100..]).unwrap());
        let positions = device.upload("positions", &[position as u32; N_TOKENS]).unwrap();
        let slots: Vec<u32> = (0..N_TOKENS).map(|page| (page * 16 + position) as u32).collect();
        let slots = device.upload("slots", &slots).unwrap();
        let places = StepPlaces {
            positions: positions.view(),
            slots: slots.view(),
        };
        if is_latent {
            ops.store_keys(places, rows.view(), kv.layer_mut(0)).unwrap();
        } else {
            ops.store_kv(places, [rows.view(), value_rows.view()], kv.layer_mut(0))
                .unwrap();
        }
    }
    // A run of two tokens at its end if there are runs.
    let [positions, seq_of] = if has_runs {
        [[4, 2, 0, 2, 3], [0, 1, 2, 3, 3]]
    } else {
        [[4, 2, 0, 1, 3], [0, 1, 2, 3, 4]]
    };
    let upload = |values: &[u32]| device.upload("step inputs", values).unwrap();
    let (positions, seq_of) = (upload(&positions), upload(&seq_of));
    let seq_starts = upload(&[0, 1, 2, 3, 5]);
    let (page_starts, pages) = (upload(&[0, 1, 2, 3, 4, 5]), upload(&[3, 1, 0, 4, 2]));
    let step = AttentionStep {
        positions: positions.view(),
        seq_of: seq_of.view(),
        page_starts: page_starts.view(),
        pages: pages.view(),
        max_pages: 16,
        is_one_each: !has_runs,
        runs: has_runs.then(|| TokenRuns {
            n_leading_single: 0,
            seq_starts: seq_starts.view(),
            longest: 2,
            has_single: true,
        }),
        shared: None,
    };
    let attention: Attention<Buffer<f32>> = Attention {
        layer_idx: 0,
        n_heads: N_HEADS,
        scale: 0.2,
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    };
    let widths = AttentionShape {
        n_heads: N_HEADS,
        n_kv_heads: 1,
        head_dim_k: dim_k,
        head_dim_v: dim_v,
    };
    let needs = ScratchNeeds::of([(widths, is_latent)].into_iter(), step.max_pages);
    let mut scratch = AttentionScratch::new(&device, n_scratch_tokens, n_scratch_tokens, needs).unwrap();
    let q = device
        .upload("queries", &values(N_TOKENS * N_HEADS * dim_k))
        .unwrap();
    let mut output = device.alloc("output", N_TOKENS * N_HEADS * dim_v).unwrap();
    let before = device.n_launches();
    ops.attention(
        &attention,
        &step,
        kv.layer(0),
        q.view(),
        output.view_mut(),
        None,
        &mut scratch,
    )
    .unwrap();
    let n_launches = device.n_launches() - before;
    (device.download(output.view()).unwrap(), n_launches)
}

#[test]
fn tokens_beyond_the_scratch_attend() {
    for is_latent in [false, true] {
        let (whole, n_launches) = attend(is_latent, false, 5);
        let (cut, n_cut_launches) = attend(is_latent, false, 2);
        assert_eq!(cut, whole);
        assert_eq!(n_cut_launches, 3 * n_launches);
    }
}

#[test]
fn runs_of_one_token_are_split_in_a_mixed_step() {
    let (whole, n_launches) = attend(true, true, 5);
    // The long run in one launch; the others and their combination.
    assert_eq!(n_launches, 3);
    let (cut, n_cut_launches) = attend(true, true, 1);
    assert_eq!(n_cut_launches, 1 + 2 * 4);
    assert_eq!(cut, whole);
    // The first three tokens are those of a decode step.
    let (decoded, _) = attend(true, false, 5);
    let n_equal = 3 * 3 * 16;
    assert_eq!(whole[..n_equal], decoded[..n_equal]);
    assert!(whole.iter().all(|x| x.is_finite()));
}
