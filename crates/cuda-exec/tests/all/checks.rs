//! Tests the checks at the first use of a GPU with injected defects: each is found with its kernel, and exactly the feature at fault is
//! turned off.

use std::time::{Duration, Instant};

use tokenmill_backend::KvType;
use tokenmill_cuda_exec::{
    Buffers, Device, DeviceOptions, Finding, FirstUse, HeadsNeed, Needs, StepDown, check_kernels,
};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::{Defect, SimOptions, Simulator, When};
use tokenmill_testkit::cases;

/// Longest wait for a simulated GPU, which runs kernels when the host waits for them.
const LIMIT: Duration = Duration::from_mins(1);

fn needs() -> Needs {
    Needs {
        types: vec![TensorType::Q4_K, TensorType::Q6_K],
        table_types: vec![TensorType::Q6_K],
        heads: vec![HeadsNeed { dim: 64, group: 4 }],
        ..attention()
    }
}

/// Lists the kernels of products alone: the simulator needs seconds for a check of everything.
fn products() -> Needs {
    Needs {
        types: vec![TensorType::Q4_K],
        heads: Vec::new(),
        ..attention()
    }
}

/// Lists the kernels of attention alone, for few heads.
fn attention() -> Needs {
    Needs {
        types: Vec::new(),
        table_types: Vec::new(),
        expert_types: Vec::new(),
        kv_types: [KvType::F16; 2],
        heads: vec![HeadsNeed { dim: 64, group: 1 }],
        is_recurrent: false,
        is_batch_invariant: false,
    }
}

/// Lists the kernels of recurrent layers alone.
fn recurrence() -> Needs {
    Needs {
        heads: Vec::new(),
        is_recurrent: true,
        ..attention()
    }
}

/// Lists only the kernels that every model has.
fn of_all() -> Needs {
    Needs {
        heads: Vec::new(),
        ..attention()
    }
}

fn options() -> DeviceOptions {
    DeviceOptions {
        buffers: Buffers::Apart,
        texts: Some(Simulator::texts()),
        ..DeviceOptions::default()
    }
}

fn wrong(kernel: &str, when: When) -> Defect {
    Defect::Wrong {
        kernel: kernel.to_owned(),
        when,
    }
}

fn refused(kernel: &str, is_lost: bool) -> Defect {
    Defect::Refused {
        kernel: kernel.to_owned(),
        code: if is_lost { 719 } else { 701 },
        is_lost,
    }
}

/// Runs the checks of these kernels on a GPU with a defect, and turns off the features that fail.
fn first_use(needs: &Needs, defect: Defect, limit: Duration) -> FirstUse {
    let simulator = Simulator::new(&SimOptions::default());
    simulator.plant(defect);
    let mut found = FirstUse::default();
    let mut n_steps = 0;
    let open = |options| Device::open_with(&Simulator::api(), simulator.ordinal(), options);
    found
        .check_kernels(&options(), needs, limit, open, |_, _| n_steps += 1)
        .unwrap();
    assert_eq!(n_steps, found.findings.len());
    found
}

#[track_caller]
fn check(needs: &Needs, defect: Defect, kernel: &str, steps: &[StepDown], is_unfit: bool) {
    let found = first_use(needs, defect, LIMIT);
    let first = &found.findings[0];
    assert!(first.kernel.contains(kernel), "{first}");
    assert_eq!((&found.steps[..], found.is_unfit), (steps, is_unfit), "{first}");
    assert!(!found.is_hung);
}

#[test]
fn a_gpu_without_a_defect_passes_on_every_card_and_with_every_type() {
    for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
        let device = Simulator::new(&SimOptions {
            capability,
            ..SimOptions::default()
        })
        .device();
        let n_checks = check_kernels(&device, &needs()).unwrap();
        assert!(n_checks >= 12, "{capability:?}: {n_checks}");
    }
    let simulator = Simulator::new(&SimOptions::default());
    let types: Vec<TensorType> = (tokenmill_quant::Format::all().iter())
        .map(tokenmill_quant::Format::tensor_type)
        .collect();
    for ty in cases("types at the first use", types.len()).map(|case| types[case]) {
        for kv_types in [[KvType::F16; 2], [KvType::Q8_0, KvType::F16]] {
            let needs = Needs {
                types: vec![ty],
                table_types: vec![ty],
                expert_types: vec![ty],
                kv_types,
                heads: vec![HeadsNeed { dim: 96, group: 2 }],
                is_recurrent: false,
                is_batch_invariant: false,
            };
            if kv_types[0] == KvType::F16 || ty == TensorType::Q8_0 {
                check_kernels(&simulator.device(), &needs)
                    .unwrap_or_else(|finding| panic!("{ty:?}: {finding}"));
            }
        }
    }
}

#[test]
fn wrong_products_by_warpgroups_are_given_up() {
    check(
        &products(),
        wrong("wide_band", When::Always),
        "matmul_wide_q4_k/wide_band",
        &[StepDown::NoWide],
        false,
    );
}

#[test]
fn wrong_attention_by_warpgroups_is_given_up() {
    check(
        &attention(),
        wrong("attention_wide", When::Always),
        "attention_wide/",
        &[StepDown::NoWide],
        false,
    );
}

#[test]
fn a_launch_of_warpgroups_that_loses_the_device_is_given_up() {
    let found = first_use(&products(), refused("wide_", true), LIMIT);
    assert!(found.findings[0].is_lost, "{}", found.findings[0]);
    assert_eq!(
        (&found.steps[..], found.is_unfit),
        (&[StepDown::NoWide][..], false)
    );
}

#[test]
fn a_launch_of_warpgroups_that_is_refused_is_given_up() {
    check(
        &products(),
        refused("wide_gated", false),
        "wide_gated",
        &[StepDown::NoWide],
        false,
    );
}

#[test]
fn a_kernel_that_is_wrong_when_it_begins_early_is_launched_in_order() {
    check(
        &products(),
        wrong("matvec_m1", When::Early),
        "matvec_q4_k/matvec_m1",
        &[StepDown::InOrder],
        false,
    );
}

#[test]
fn wrong_attention_to_shared_pages_is_given_up() {
    for (kernel, check_name) in [
        ("attention_shared", "to shared pages"),
        ("attention_rest", "beside shared pages"),
    ] {
        let found = first_use(&attention(), wrong(kernel, When::Always), LIMIT);
        let first = &found.findings[0];
        assert!(
            first.kernel.starts_with(&format!("{kernel}/{kernel}_f16_d64")),
            "{first}"
        );
        assert!(first.check.ends_with(check_name), "{first}");
        assert_eq!(
            (&found.steps[..], found.is_unfit),
            (&[StepDown::Apart][..], false),
            "{first}"
        );
        check(
            &attention(),
            refused(kernel, false),
            kernel,
            &[StepDown::Apart],
            false,
        );
    }
}

#[test]
fn a_wrong_product_that_nothing_replaces_leaves_the_gpu_unused() {
    check(
        &products(),
        wrong("matvec_m1", When::Always),
        "matvec_q4_k/matvec_m1",
        &[StepDown::InOrder],
        true,
    );
}

#[test]
fn a_wrong_norm_leaves_the_gpu_unused() {
    check(
        &products(),
        wrong("add_norm", When::Always),
        "norm/add_norm",
        &[StepDown::InOrder],
        true,
    );
}

#[test]
fn a_wrong_rotation_of_images_leaves_the_gpu_unused() {
    check(
        &attention(),
        wrong("rope_axes", When::Always),
        "rope_kv/rope_axes",
        &[StepDown::InOrder],
        true,
    );
}

#[test]
fn a_wrong_draw_of_tokens_leaves_the_gpu_unused() {
    for (kernel, check_name) in [
        ("sample_parts", "sampling from few tokens"),
        ("sample_candidates", "sampling from many tokens"),
    ] {
        let found = first_use(&of_all(), wrong(kernel, When::Always), LIMIT);
        let first = &found.findings[0];
        assert_eq!(
            (&first.check[..], &first.kernel[..]),
            (check_name, "sample/sample_rows")
        );
        assert!(found.is_unfit, "{first}");
    }
}

#[test]
fn wrong_changes_of_adapters_leave_the_gpu_unused() {
    check(
        &of_all(),
        wrong("lora_down", When::Always),
        "lora/lora_up",
        &[StepDown::InOrder],
        true,
    );
}

#[test]
fn a_wrong_recurrent_layer_leaves_the_gpu_unused() {
    for kernel in [
        "short_conv/short_conv_t16",
        "ssm_scan/ssm_chunks",
        "ssm_scan/ssm_scan_own_r16",
        "delta_net/delta_net_chunks",
        "delta_net/delta_net_channels",
    ] {
        let name = kernel.split('/').next_back().unwrap();
        check(
            &recurrence(),
            wrong(name, When::Always),
            kernel,
            &[StepDown::InOrder],
            true,
        );
    }
}

#[test]
fn wrong_attention_of_single_tokens_leaves_the_gpu_unused() {
    check(
        &attention(),
        wrong("attention_f16", When::Always),
        "attention_decode/attention_f16",
        &[StepDown::InOrder],
        true,
    );
}

#[test]
fn a_kernel_that_does_not_end_is_given_up_within_the_limit() {
    let began = Instant::now();
    let hang = |kernel: &str| Defect::Hang {
        kernel: kernel.to_owned(),
    };
    let found = first_use(&products(), hang("wide_"), Duration::from_secs(2));
    assert!(found.is_hung && !found.is_unfit, "{found:?}");
    assert_eq!(found.steps, [StepDown::NoWide]);
    let Finding { reason, check, .. } = &found.findings[0];
    assert!(reason.contains("no answer within 2 s"), "{reason}");
    assert!(
        check.starts_with("products of") || check.starts_with("gated products of"),
        "{check}"
    );
    // No other kernel replaces it, but it may end without early launches.
    let found = first_use(&products(), hang("add_norm"), Duration::from_millis(300));
    assert!(found.is_hung && found.steps == [StepDown::InOrder], "{found:?}");
    assert!(
        found.findings[0].kernel.contains("norm/add_norm"),
        "{}",
        found.findings[0]
    );
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
}

#[test]
fn what_was_given_up_is_not_given_up_again() {
    let simulator = Simulator::new(&SimOptions::default());
    simulator.plant(wrong("wide_band", When::Always));
    let open = |options| Device::open_with(&Simulator::api(), simulator.ordinal(), options);
    let mut found = FirstUse {
        steps: vec![StepDown::NoWide],
        ..FirstUse::default()
    };
    found
        .check_kernels(&options(), &products(), LIMIT, open, |finding, _| {
            panic!("{finding}")
        })
        .unwrap();
    assert_eq!(found.steps, [StepDown::NoWide]);
}
