//! What the processor really did: a program is run one instruction at a time, and every store,
//! write-back, fence and sync in it is decoded from the machine code.
//!
//! The recorder tells what a pool was *asked for*. Nothing here trusts it, nor any counter or
//! function of this crate: the program runs in a forked copy of the test, traced with
//! `PTRACE_SINGLESTEP`, and the instruction that each step executes is read from its memory. So
//! the code under test is the production code, without a hook.
//!
//! [`observe`] runs a program and returns its [`Event`]s; [`compare`] holds them against the
//! events of a recorder. What this cannot show: that the processor does what its manual says.

mod compare;
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::FlushInstruction;

/// Something that an instruction did. Addresses are those of the traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// Bytes of the watched range were stored; `non_temporal`: around the cache.
    Store {
        at: usize,
        len: usize,
        non_temporal: bool,
    },
    /// The line of this address was written back, wherever it is.
    WriteBack { at: usize, how: FlushInstruction },
    /// `sfence`.
    StoreFence,
    /// `mfence` or a locked instruction: it drains the write-combining buffers.
    Drain,
    /// `msync`, and what it returned.
    Sync {
        at: usize,
        len: usize,
        flags: u64,
        result: i64,
    },
}

/// Where the traced program says that it has ended.
static STAGE: AtomicU64 = AtomicU64::new(RUNNING);
const RUNNING: u64 = 0;
const ENDED: u64 = 1;
const PANICKED: u64 = 2;

/// More instructions than this are a program that does not end.
const STEPS_MAX: u64 = 20_000_000;
/// Bytes of the longest instruction.
const INSTRUCTION_MAX: usize = 15;
const ZERO_FLAG: u64 = 1 << 6;
const MSYNC: u64 = nix::libc::SYS_msync as u64;

/// Runs a program in a copy of this process; returns what it did, of its stores those to the
/// `watched` addresses. What it changed in memory is not seen by the caller.
fn observe(watched: Range<usize>, program: impl FnOnce()) -> Vec<Event> {
    // SAFETY: the child runs the program, on the one thread that it has, and nothing after it.
    // The program takes no lock that another thread of the test could hold.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => be_traced(program),
        ForkResult::Parent { child } => {
            let tracer = Tracer {
                child,
                watched,
                info: InstructionInfoFactory::new(),
                known: HashMap::new(),
            };
            tracer.run()
        }
    }
}

fn be_traced(program: impl FnOnce()) -> ! {
    ptrace::traceme().expect("this process may be traced");
    raise(Signal::SIGSTOP).expect("stop");
    let ended = catch_unwind(AssertUnwindSafe(program)).is_ok();
    // A plain store: a locked one would drain what the program should have drained.
    STAGE.store(if ended { ENDED } else { PANICKED }, Ordering::Release);
    unreachable!("the tracer kills this process at the store")
}

/// An instruction, and whether it can do anything that counts.
struct Known {
    instruction: Instruction,
    interesting: bool,
}

/// The parent's side. The child is killed when this is dropped.
struct Tracer {
    child: Pid,
    watched: Range<usize>,
    info: InstructionInfoFactory,
    /// By address: the code does not change.
    known: HashMap<u64, Rc<Known>>,
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It may have died already, and is awaited either way.
        let _ = ptrace::kill(self.child);
        let _ = waitpid(self.child, None);
    }
}

impl Tracer {
    fn run(mut self) -> Vec<Event> {
        let stopped = waitpid(self.child, None).expect("wait");
        assert_eq!(stopped, WaitStatus::Stopped(self.child, Signal::SIGSTOP));
        ptrace::setoptions(self.child, ptrace::Options::PTRACE_O_EXITKILL).expect("options");
        let mut events = Vec::new();
        for _ in 0..STEPS_MAX {
            match self.step(&mut events) {
                RUNNING => {}
                ENDED => return events,
                _ => panic!("the traced program panicked; its message is above"),
            }
        }
        panic!("the traced program does not end");
    }

    /// Executes one instruction; returns the program's stage.
    fn step(&mut self, events: &mut Vec<Event>) -> u64 {
        let before = ptrace::getregs(self.child).expect("registers");
        let known = self.decode(before.rip);
        ptrace::step(self.child, None).expect("step");
        let stopped = waitpid(self.child, None).expect("wait");
        assert_eq!(
            stopped,
            WaitStatus::Stopped(self.child, Signal::SIGTRAP),
            "at {:#x}, {:?}",
            before.rip,
            known.instruction.mnemonic()
        );
        if !known.interesting {
            return RUNNING;
        }
        let after = ptrace::getregs(self.child).expect("registers");
        self.note(&known.instruction, &before, &after, events)
    }

    fn decode(&mut self, at: u64) -> Rc<Known> {
        if let Some(known) = self.known.get(&at) {
            return known.clone();
        }
        let mut code = [0; INSTRUCTION_MAX.next_multiple_of(8)];
        for (i, word) in code.chunks_exact_mut(8).enumerate() {
            // Past the end of the code there may be nothing.
            if let Ok(read) = ptrace::read(self.child, (at as usize + 8 * i) as *mut _) {
                word.copy_from_slice(&read.to_le_bytes());
            }
        }
        let instruction = Decoder::with_ip(64, &code, at, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid(), "unknown code {code:02x?}");
        let known = Rc::new(Known {
            interesting: self.interesting(&instruction),
            instruction,
        });
        self.known.insert(at, known.clone());
        known
    }

    fn interesting(&mut self, instruction: &Instruction) -> bool {
        let by_name = matches!(
            instruction.mnemonic(),
            Mnemonic::Clwb
                | Mnemonic::Clflushopt
                | Mnemonic::Clflush
                | Mnemonic::Sfence
                | Mnemonic::Mfence
                | Mnemonic::Syscall
        );
        let memory = self.info.info(instruction).used_memory();
        by_name || memory.iter().any(|used| stores(used.access()))
    }

    /// Notes what an instruction did; returns the program's stage.
    fn note(
        &mut self,
        instruction: &Instruction,
        before: &user_regs_struct,
        after: &user_regs_struct,
        events: &mut Vec<Event>,
    ) -> u64 {
        let write_back = |how| Event::WriteBack {
            at: operand(instruction, before),
            how,
        };
        match instruction.mnemonic() {
            Mnemonic::Clwb => events.push(write_back(FlushInstruction::Clwb)),
            Mnemonic::Clflushopt => events.push(write_back(FlushInstruction::Clflushopt)),
            Mnemonic::Clflush => events.push(write_back(FlushInstruction::Clflush)),
            Mnemonic::Sfence => events.push(Event::StoreFence),
            Mnemonic::Mfence => events.push(Event::Drain),
            Mnemonic::Syscall if before.rax == MSYNC => events.push(Event::Sync {
                at: before.rdi as usize,
                len: before.rsi as usize,
                flags: before.rdx,
                result: after.rax as i64,
            }),
            Mnemonic::Syscall => {}
            _ => return self.note_stores(instruction, before, after, events),
        }
        RUNNING
    }

    fn note_stores(
        &mut self,
        instruction: &Instruction,
        before: &user_regs_struct,
        after: &user_regs_struct,
        events: &mut Vec<Event>,
    ) -> u64 {
        if instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg {
            events.push(Event::Drain);
        }
        let mut stage = RUNNING;
        for (at, len) in self.stored(instruction, before, after) {
            if at == STAGE.as_ptr().addr() {
                stage = ptrace::read(self.child, at as *mut _).expect("the stage") as u64;
            }
            let end = at + len;
            if at < self.watched.end && end > self.watched.start {
                let non_temporal = is_non_temporal(instruction.mnemonic());
                events.push(Event::Store {
                    at,
                    len,
                    non_temporal,
                });
            }
        }
        stage
    }

    /// Addresses and lengths that an instruction stored to.
    fn stored(
        &mut self,
        instruction: &Instruction,
        before: &user_regs_struct,
        after: &user_regs_struct,
    ) -> Vec<(usize, usize)> {
        if instruction.is_string_instruction() && instruction.has_rep_prefix() {
            // One element a step; none if the count was zero.
            let len = instruction.memory_size().size();
            return (before.rcx != 0)
                .then_some((before.rdi as usize, len))
                .into_iter()
                .collect();
        }
        let exchanged = after.eflags & ZERO_FLAG != 0;
        let memory = self.info.info(instruction).used_memory();
        let stores = memory.iter().filter(|used| match used.access() {
            OpAccess::ReadCondWrite | OpAccess::CondWrite => exchanged,
            access => stores(access),
        });
        stores
            .map(|used| {
                let at = used
                    .virtual_address(0, |register, _, _| value(before, register))
                    .expect("an address of general registers");
                (at as usize, used.memory_size().size())
            })
            .collect()
    }
}

fn stores(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn is_non_temporal(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Movnti
            | Mnemonic::Movntdq
            | Mnemonic::Vmovntdq
            | Mnemonic::Movntps
            | Mnemonic::Vmovntps
            | Mnemonic::Movntpd
            | Mnemonic::Vmovntpd
    )
}

/// The address of an instruction's only operand.
fn operand(instruction: &Instruction, registers: &user_regs_struct) -> usize {
    instruction
        .virtual_address(0, 0, |register, _, _| value(registers, register))
        .expect("an address of general registers") as usize
}

fn value(registers: &user_regs_struct, register: Register) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}
