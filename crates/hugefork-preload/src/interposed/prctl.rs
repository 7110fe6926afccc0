//! `prctl`: `PR_SET_THP_DISABLE` is not passed on, and `PR_GET_THP_DISABLE` answers as if it was. What concerns rights
//! and sandboxes is `sandbox`'s.

use std::ffi::{c_int, c_long, c_ulong};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::interposed::kernel::{kernel, quietly};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{config, sandbox};

/// What the program has asked for by `PR_SET_THP_DISABLE`, as `PR_GET_THP_DISABLE` answers.
static THINKS_DISABLED: AtomicI32 = AtomicI32::new(0);

/// The same but for memory that is advised to have huge pages (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
const EXCEPT_ADVISED: c_ulong = 1 << 1;

/// As libc's `prctl`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if config::mode().is_some() {
        match option {
            // What the kernel refuses, it is to refuse.
            libc::PR_SET_THP_DISABLE if (b, c, d) == (0, 0, 0) => {
                if THINKS_DISABLED.swap(i32::from(a != 0), Ordering::Relaxed) & EXCEPT_ADVISED as c_int != 0 {
                    // SAFETY: changes where huge pages come by themselves.
                    quietly(|| unsafe { kernel!(libc::SYS_prctl, libc::PR_SET_THP_DISABLE, 0) });
                }
                stats::add(Word::ThpDisablesKept, u64::from(a != 0));
                return 0;
            }
            // The library advises where it wants them: the kernel may have it so, if it knows of it.
            libc::PR_SET_THP_DISABLE if a != 0 && (b, c, d) == (EXCEPT_ADVISED, 0, 0) => {
                // SAFETY: as above.
                let done = unsafe { kernel!(libc::SYS_prctl, option, a, b) as c_int };
                if done == 0 {
                    THINKS_DISABLED.store(1 | EXCEPT_ADVISED as c_int, Ordering::Relaxed);
                }
                return done;
            }
            libc::PR_GET_THP_DISABLE if (a, b, c, d) == (0, 0, 0, 0) => return THINKS_DISABLED.load(Ordering::Relaxed),
            _ => {}
        }
    }
    let [a, b, c, d] = [a, b, c, d].map(|argument| argument as c_long);
    // SAFETY: the caller's.
    unsafe { sandbox::make(libc::SYS_prctl, [option.into(), a, b, c, d, 0]) as c_int }
}
