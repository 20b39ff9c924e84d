//! Tests the preparation of kernels: the shared memory carveout, opt-in shared memory, and code that was compiled ahead.

use std::sync::OnceLock;

use tokenmill_cuda_exec::{
    Api, Args, Buffers, Carveout, Cubins, Device, DeviceOptions, LaunchShape, Ops, modules, self_test,
};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::{SimOptions, Simulator};

fn options() -> DeviceOptions {
    DeviceOptions {
        buffers: Buffers::Apart,
        texts: Some(Simulator::texts()),
        ..DeviceOptions::default()
    }
}

/// Launches of kernels with different shared memory want the same carveout, so none waits until multiprocessors are idle.
#[test]
fn kernels_want_the_memory_of_a_multiprocessor_divided_alike() {
    let divisions = |carveout| {
        let simulator = Simulator::new(&SimOptions::default());
        let options = DeviceOptions {
            carveout,
            ..options()
        };
        let device = Device::open_with(&Simulator::api(), simulator.ordinal(), options).unwrap();
        self_test(&device).unwrap();
        simulator.n_divisions()
    };
    assert_eq!(divisions(Carveout::Shared), 0);
    assert!(divisions(Carveout::OfDriver) > 0);
}

/// Builds arguments of `attention_f16_*`. They are invalid, which is harmless because the launch is not waited for.
fn arguments<'a>() -> Args<'a> {
    let pointers = |args: Args<'a>, n: usize| (0..n).fold(args, |args, _| args.read_or_null::<f32>(None));
    let args = pointers(Args::new(), 13).float(1.0).float(0.0);
    let args = (0..13).fold(args, |args, _| args.count(1));
    pointers(args, 2)
}

/// Static shared memory counts towards the default limit.
#[test]
fn static_shared_memory_counts_towards_the_limit() {
    let n_bytes = (48 << 10) - 256;
    let launched = |asks: bool| {
        let device = Simulator::new(&SimOptions::default()).device();
        let (module, name) = ("attention_decode", "attention_f16_d64");
        let kernel = if asks {
            device.kernel_with_shared_bytes(module, name, n_bytes)
        } else {
            device.kernel(module, name)
        };
        let kernel = kernel.unwrap();
        assert!(device.resources(kernel).unwrap().shared_bytes > 1024);
        let shape = LaunchShape::new([1, 1, 1], 128).with_shared_bytes(n_bytes);
        device.launch(kernel, shape, &arguments())
    };
    launched(true).unwrap();
    let refused = launched(false).unwrap_err().to_string();
    assert!(refused.contains("INVALID_VALUE"), "{refused}");
}

#[test]
fn a_multiprocessor_holds_as_many_thread_blocks_as_its_card_has_room_for() {
    let blocks = |capability, shared_bytes| {
        let device = Simulator::new(&SimOptions {
            capability,
            ..SimOptions::default()
        })
        .device();
        let kernel = device
            .kernel_with_shared_bytes("attention_decode", "attention_f16_d64", 96 << 10)
            .unwrap();
        device
            .blocks_per_multiprocessor(kernel, 128, shared_bytes)
            .unwrap()
    };
    // The launch bounds are four thread blocks of 128 threads.
    assert_eq!([blocks((9, 0), 0), blocks((8, 9), 0)], [4, 4]);
    assert_eq!(
        [
            blocks((9, 0), 90 << 10),
            blocks((8, 9), 90 << 10),
            blocks((8, 0), 90 << 10)
        ],
        [2, 1, 1]
    );
}

/// Makes stand-ins for the code of the modules of every network over f16 keys and values, and of the self-test's product. Their compression
/// takes seconds.
fn stand_ins() -> &'static [u8] {
    static ENTRIES: OnceLock<Vec<u8>> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        let mut entries = Vec::new();
        let is_of_other_store = |name: &str| {
            let stores = ["e4m3_e4m3", "f32_f32", "q8_0_q8_0", "mixed"];
            stores.iter().any(|store| name.ends_with(store))
        };
        let is_needed = |module: &modules::KernelModule| {
            module.types == [TensorType::Q4_K]
                || (module.types.is_empty() && !is_of_other_store(&module.name))
        };
        for module in modules::all().into_iter().filter(is_needed) {
            let ptx = modules::ptx(&module.name).unwrap();
            let code = ["\x7fELF", &modules::text_for(&ptx, (9, 0))].concat();
            modules::Entry::append(&mut entries, &module.name, code.as_bytes());
        }
        entries
    })
}

/// Builds an archive of stand-ins for code of a compute capability, of all needed modules except one.
pub(crate) fn archive(capability: &str, missing: Option<&str>) -> Cubins {
    let mut archive = Cubins::header();
    for entry in modules::Entry::all(stand_ins()).filter(|entry| Some(entry.name) != missing) {
        let name = format!("{capability}/{}", entry.name);
        modules::Entry { name: &name, ..entry }.append_to(&mut archive);
    }
    Cubins::new(archive).unwrap()
}

#[test]
fn code_for_exactly_this_gpu_is_taken_before_the_drivers_compiler() {
    // The archive's code was assembled with CUDA 13.0.
    let newer = Simulator::api_for_cuda_13();
    let check = |api: &Api, capability: &str, all_but_one: bool| {
        let simulator = Simulator::new(&SimOptions::default());
        let options = DeviceOptions {
            cubins: Some(archive(capability, Some("norm"))),
            ..options()
        };
        let device = Device::open_with(api, simulator.ordinal(), options).unwrap();
        Ops::load(&device).unwrap();
        self_test(&device).unwrap();
        let (n_loaded, _) = device.module_loads();
        let expected = if all_but_one { n_loaded - 1 } else { 0 };
        assert_eq!(device.n_ahead(), expected, "{capability}");
        assert!(simulator.n_early_launches() > 0);
    };
    check(&newer, "sm_90", true);
    // Code for another GPU, and a driver older than the code.
    check(&newer, "sm_80", false);
    check(&Simulator::api(), "sm_90", false);
}
