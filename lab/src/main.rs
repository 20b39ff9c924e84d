//! `cargo lab`: the table of the project's own commands that run its code.
//!
//! Each command is one module of the library in this folder. A new one is its module and a row here.
#![forbid(unsafe_code)]

use clap::Parser;

/// Writes the command enum and its dispatch, one row per command.
macro_rules! commands {
    ($($name:ident => $module:ident;)*) => {
        #[derive(Parser)]
        #[command(name = "cargo lab", about = "The project's own tools that run its code")]
        enum Command {
            $($name(lab::$module::Args),)*
        }

        fn main() -> anyhow::Result<()> {
            match Command::parse() {
                $(Command::$name(args) => lab::$module::run(&args),)*
            }
        }
    };
}

commands! {
    Bench => bench;
    Conformance => conformance;
    DeviceBisect => device_bisect;
    DeviceCompare => device_compare;
    DevicePack => device_pack;
    DeviceReport => device_report;
    DeviceWays => device_ways;
    FuzzSeeds => fuzz_seeds;
    InspectPtx => inspect_ptx;
    KernelBench => kernel_bench;
    KernelEstimate => kernel_estimate;
    MaskTimes => mask_times;
    Parity => parity;
    Ptx => ptx;
    Pull => pull;
    ReadCalls => read_calls;
    Synth => synth;
}
