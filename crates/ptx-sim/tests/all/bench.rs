//! A test bench: wraps an instruction sequence into a kernel, runs it on one warp, and gives the results back.

use tokenmill_ptx_sim::{Arguments, DeviceMemory, LaunchConfig, LaunchReport, LoadError, Module, launch};

pub(crate) const HEADER: &str = ".version 8.6\n.target sm_90\n.address_size 64\n";

/// Loads `ptx` (without its header), runs its only kernel with one buffer argument per entry of `buffers`, and returns
/// the buffers as the kernel left them.
pub(crate) fn run(ptx: &str, config: &LaunchConfig, buffers: &mut [Vec<u8>]) -> LaunchReport {
    run_module(&format!("{HEADER}{ptx}"), config, buffers)
}

/// Does the same with a module's whole text.
pub(crate) fn run_module(ptx: &str, config: &LaunchConfig, buffers: &mut [Vec<u8>]) -> LaunchReport {
    let mut memory = DeviceMemory::new();
    let module = Module::load(ptx, &mut memory).unwrap();
    let mut arguments = Arguments::new();
    let mut addresses = Vec::new();
    for buffer in buffers.iter() {
        let address = memory.alloc_with(buffer).unwrap();
        addresses.push(address);
        arguments = arguments.ptr(address);
    }
    let report = launch(&module.kernels()[0], &memory, config, &arguments).unwrap();
    for (buffer, address) in buffers.iter_mut().zip(addresses) {
        *buffer = memory.read_vec(address, buffer.len()).unwrap();
    }
    report
}

pub(crate) fn one_warp() -> LaunchConfig {
    LaunchConfig::new([1, 1, 1], [32, 1, 1])
}

pub(crate) fn load_error(body: &str) -> LoadError {
    let ptx = format!(
        "{HEADER}.visible .entry k() {{ .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;\n{body}\nret; }}"
    );
    Module::load(&ptx, &mut DeviceMemory::new()).unwrap_err()
}

/// Runs `body` with `%a0.. ` set from the lanes of `inputs` (64 bits each; `%r0..` hold their lower halves, `%h0..` the
/// lowest 16 bits) and returns the lanes of `%out`.
pub(crate) fn eval(body: &str, inputs: &[[u64; 32]]) -> [u64; 32] {
    let load = |index: usize| {
        format!(
            "ld.global.u64 %a{index}, [%in+{}]; cvt.u32.u64 %r{index}, %a{index}; cvt.u16.u64 %h{index}, %a{index};\n",
            256 * index
        )
    };
    let loads: String = (0..inputs.len()).map(load).collect();
    let ptx = format!(
        ".visible .entry k(.param .u64 in, .param .u64 out) {{
            .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %a<9>; .reg .b64 %in, %to, %out; .reg .b32 %lane;
            .reg .b32 %f<9>; .reg .b64 %d<9>;
            ld.param.u64 %in, [in]; ld.param.u64 %to, [out];
            mov.u32 %lane, %tid.x;
            mad.wide.u32 %in, %lane, 8, %in;
            mad.wide.u32 %to, %lane, 8, %to;
            mov.u64 %out, 0;
            {loads}
            {body}
            st.global.u64 [%to], %out;
            ret;
        }}"
    );
    let bytes = inputs
        .iter()
        .flatten()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut buffers = [bytes, vec![0; 256]];
    let report = run(&ptx, &one_warp(), &mut buffers);
    assert!(report.findings.is_empty(), "{body}: {:?}", report.findings);
    let (values, _) = buffers[1].as_chunks::<8>();
    std::array::from_fn(|lane| u64::from_le_bytes(values[lane]))
}

/// A small generator of test values: xorshift, with the extremes mixed in.
pub(crate) struct Values(pub(crate) u64);

impl Values {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn lanes(&mut self) -> [u64; 32] {
        const EXTREMES: [u64; 8] = [
            0,
            1,
            u64::MAX,
            0x7fff_ffff,
            0x8000_0000,
            1 << 63,
            0x7fff_ffff_ffff_ffff,
            0x8000_8000,
        ];
        std::array::from_fn(|_| match self.bits() % 5 {
            0 => EXTREMES[(self.bits() % 8) as usize],
            1 => self.bits() % 64,
            _ => self.bits(),
        })
    }
}
