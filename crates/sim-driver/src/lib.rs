//! The CUDA driver's C interface over the PTX simulator.
//!
//! For tests only. Built as a shared library and found before the real one as `libcuda.so.1`, it lets a whole program run its CUDA path (its search
//! for the driver, its calls, its kernels, its captured graphs) on a machine without a GPU, and meet every failure that a driver can report. It has
//! only the functions that tokenmill calls; others are unresolved.
//!
//! As a Rust library, [`Simulator`] adds a GPU to the process, opens it through the same functions, injects faults and counts operations:
//!
//! ```
//! use tokenmill_sim_driver::{SimOptions, Simulator};
//!
//! let simulator = Simulator::new(&SimOptions::default());
//! let device = simulator.device();
//! let numbers = device.upload("numbers", &[1u32, 2, 3])?;
//! assert_eq!(device.download(numbers.view())?, [1, 2, 3]);
//! assert_eq!(simulator.copy_counts(), (1, 1));
//! # Ok::<(), tokenmill_cuda_exec::CudaExecError>(())
//! ```
//!
//! The variable `TOKENMILL_SIM_DRIVER` describes the machine, as `name=value` separated by commas:
//!
//! | name | value | default |
//! |---|---|---|
//! | `devices` | number of GPUs | 1 |
//! | `capability` | compute capability, as `7.5`, which determines multiprocessors and shared memory | 8.0 |
//! | `cuda` | the CUDA version of the driver, as `11.2` | 12.4 |
//! | `mib` | memory of a GPU | 8192 |
//! | `module_kib` | memory that the driver takes of the GPU for each module | 0 |
//! | `lose` | the launch, counted from 0, that faults | none |
//! | `ptx` | `refused`: the driver takes no PTX | taken |
//! | `compiler` | `missing`: the driver does not find its compiler, and takes only cubins | there |
//! | `capture` | `refused`: streams cannot be captured; `refused_early`: captures with launches that begin early fail | possible |
//! | `wrong`, `wrong_early`, `wrong_replayed` | prefix of a kernel's name: its launches, those that begin early, or those of graphs write wrong bits | none |
//! | `refuse`, `lose_at` | prefix of a kernel's name: its launches are refused, or lose the context | none |
//! | `hang` | prefix of a kernel's name: it never ends | none |
//!
//! A cubin is the code of a real GPU, which the simulator cannot run. Its stand-in is an image with the first bytes of an ELF file,
//! followed by PTX.
//!
//! The library also has the functions of NCCL that tokenmill calls. A program finds them by a name such as `libnccl.so.2` that leads to the
//! same file. They keep NCCL's rules: ranks join from threads of their own and wait for each other; sums are queued on streams and can be
//! captured; those of all ranks must match in order, length and kind; an aborted communicator is freed after the graphs that name it.
//!
//! An empty `CUDA_VISIBLE_DEVICES` hides the GPUs, and `CUDA_DISABLE_PTX_JIT=1` the compiler, as with the real driver. A fault of a kernel
//! is printed on standard error and reported as an illegal address.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the C interface is one of raw pointers")]
mod api;
mod card;
mod choices;
mod code;
mod context;
mod counts;
mod decoded;
mod fault;
mod gpu;
#[expect(unsafe_code, reason = "copies reach the memory of callers by its address")]
mod host_memory;
mod loaded;
mod machine;
mod nccl;
mod rows;
mod simulator;
mod timing;

pub use api::{nccl_symbol, symbol};
pub use fault::{Defect, Fault, When};
pub use simulator::{SimOptions, Simulator};
pub use timing::{AssembledKernels, LaunchEstimate};
