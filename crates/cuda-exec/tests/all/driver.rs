//! Tests faults of a driver: unknown error codes, a missing compiler, several GPUs.

use tokenmill_cuda_exec::{
    Cubins, CudaExecError, Device, Launches, Ops, QuantizedRows, WideProducts, families, probe_with,
};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};

use crate::preparing::archive;

/// Launches a kernel.
fn launch(simulator: &Simulator, fault: Fault) -> [Result<(), CudaExecError>; 2] {
    let device = simulator.device();
    let ops = Ops::load(&device).unwrap();
    let x = device.upload("x", &[1.0f32; 32]).unwrap();
    let mut rows = QuantizedRows::new(&device, 1, 32).unwrap();
    simulator.inject(fault);
    [(), ()].map(|()| ops.quantize(1, 32, x.view(), rows.view_mut()))
}

#[test]
fn a_code_that_no_header_knows_is_lost_only_where_the_context_is() {
    let fault = |code, is_lost| Fault::LaunchCode {
        after: 0,
        code,
        is_lost,
    };
    let simulator = Simulator::new(&SimOptions::default());
    let [first, second] = launch(&simulator, fault(4711, false));
    let error = first.unwrap_err();
    assert_eq!(
        error,
        CudaExecError::Failed {
            operation: "launching a kernel",
            reason: "error 4711".to_owned(),
        }
    );
    second.unwrap();
    for (code, is_lost) in [(4711, true), (226, true), (226, false), (721, false)] {
        let simulator = Simulator::new(&SimOptions::default());
        let [first, second] = launch(&simulator, fault(code, is_lost));
        assert!(
            matches!(first, Err(CudaExecError::Lost { .. })),
            "{code}: {first:?}"
        );
        assert_eq!(first, second);
    }
}

#[test]
fn a_driver_without_a_compiler_says_so_or_takes_what_was_compiled_ahead() {
    let simulator = Simulator::new(&SimOptions {
        has_compiler: false,
        ..SimOptions::default()
    });
    let error = Ops::load(&simulator.device()).unwrap_err();
    assert!(matches!(error, CudaExecError::NoJitCompiler { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("libnvidia-ptxjitcompiler.so.1"), "{said}");
    assert!(!said.contains('\n'), "{said}");

    let device = simulator.device_with(Some(archive("sm_90", None)));
    Ops::load(&device).unwrap();
    tokenmill_cuda_exec::self_test(&device).unwrap();
    assert!(device.n_ahead() > 10);
    // Precompiled code waits for earlier launches as PTX does.
    assert!(simulator.n_early_launches() > 0);
    let found = families(&device);
    assert!(found.iter().all(|family| family.missing.is_none()), "{found:?}");
    // Another GPU gets no code, and the first reason is reported.
    let device = simulator.device_with(Some(Cubins::new(Cubins::header()).unwrap()));
    let wide = families(&device).swap_remove(3).missing;
    assert!(wide.is_some_and(|reason| reason.contains("libnvidia-ptxjitcompiler.so.1")));
    let error = Ops::load(&device).unwrap_err();
    assert!(matches!(error, CudaExecError::NoJitCompiler { .. }), "{error:?}");
}

#[test]
fn a_gpu_says_which_products_it_does_not_get_and_why() {
    let check = |device: Device, [wide, early]: [Option<&str>; 2]| {
        let found = families(&device);
        let (general, special) = found.split_at(3);
        assert!(
            general.iter().all(|family| family.missing.is_none()),
            "{general:?}"
        );
        // Matrix products, prompt attention, shared pages, captured steps, launches.
        for (family, expected) in special.iter().zip([wide, wide, None, None, early]) {
            match (&family.missing, expected) {
                (None, None) => {}
                (Some(reason), Some(part)) => assert!(reason.contains(part), "{}: {reason}", family.name),
                other => panic!("{}: {other:?}", family.name),
            }
        }
    };
    let simulator = Simulator::new(&SimOptions::default());
    check(simulator.device(), [None, None]);
    let off = "TOKENMILL_CUDA_NO_WIDE=1";
    check(simulator.device_with_wide(WideProducts::Never), [Some(off), None]);
    let in_order = "TOKENMILL_CUDA_IN_ORDER=1";
    check(
        simulator.device_with_launches(Launches::InOrder),
        [None, Some(in_order)],
    );
    for capability in [(8, 0), (8, 9)] {
        let simulator = Simulator::new(&SimOptions {
            capability,
            ..SimOptions::default()
        });
        let found = format!("compute capability {}.{};", capability.0, capability.1);
        check(simulator.device(), [Some(&found), Some(&found)]);
    }
}

#[test]
fn modules_are_loaded_once_by_many_threads_with_what_the_compiler_says() {
    let device = Simulator::new(&SimOptions::default()).device();
    device.load_modules(&["norm", "argmax", "norm"]).unwrap();
    device.load_module("norm").unwrap();
    assert_eq!(device.module_loads().0, 2);
    assert_eq!(device.module_log("norm").as_deref(), Some("info    : simulated"));
    assert_eq!(device.module_log("rope_kv"), None);
    assert!(matches!(
        device.load_modules(&["norm", "nothing"]),
        Err(CudaExecError::NoKernel { .. })
    ));
    let kernel = device.kernel("norm", "add_norm").unwrap();
    assert_eq!(device.resources(kernel).unwrap().local_bytes, 0);
}

#[test]
fn only_the_first_gpu_is_opened_to_ask_how_much_memory_is_free() {
    // The process has other GPUs before these.
    let simulators = [(), ()].map(|()| Simulator::new(&SimOptions::default()));
    let found = probe_with(&Simulator::api());
    assert_eq!(found.problem, None);
    assert!(found.devices[0].free_bytes.is_some());
    for simulator in &simulators {
        let device = (found
            .devices
            .iter()
            .find(|device| device.ordinal == simulator.ordinal()))
        .expect("it is listed");
        assert_eq!((device.free_bytes, &device.problem), (None, &None));
        assert_eq!(simulator.n_opened(), 0);
    }
}

#[test]
fn only_a_fence_that_was_made_for_it_tells_times() {
    let device = Simulator::new(&SimOptions::default()).device();
    let elapsed = |fences: [tokenmill_cuda_exec::Fence; 2]| {
        for fence in &fences {
            fence.record(tokenmill_cuda_exec::Stream::Compute).unwrap();
            fence.synchronize().unwrap();
        }
        fences[0].elapsed_ms(&fences[1])
    };
    assert!(elapsed([device.timed_fence().unwrap(), device.timed_fence().unwrap()]).is_ok());
    assert!(elapsed([device.fence().unwrap(), device.fence().unwrap()]).is_err());
}

#[test]
fn a_kernel_gets_no_more_shared_memory_than_a_gpu_has() {
    // Up to 163 KiB, and from compute capability 9.0 on up to 227.
    for (capability, [most, too_many]) in [((8, 0), [160, 200]), ((9, 0), [220, 230])] {
        let options = SimOptions {
            capability,
            ..SimOptions::default()
        };
        let device = Simulator::new(&options).device();
        let load =
            |n_bytes| device.kernel_with_shared_bytes("attention_prefill", "attention_prefill_d64", n_bytes);
        load(most << 10).unwrap();
        let refused = load(too_many << 10).unwrap_err();
        assert!(matches!(refused, CudaExecError::Failed { .. }), "{refused:?}");
    }
}
