//! The text for an errno of a verbs call: the call, what it was applied to, and what to do about
//! it. All such texts are here.

use crate::error::TransportError;
use std::io;
use std::ptr::NonNull;

/// A verbs call that failed with an errno.
pub(super) fn failed(
    call: &'static str,
    target: impl Into<String>,
    source: io::Error,
) -> TransportError {
    let source = match advice(call, source.raw_os_error().unwrap_or(0)) {
        Some(advice) => io::Error::new(source.kind(), format!("{source}; {advice}")),
        None => source,
    };
    TransportError::Io { call, target: target.into(), source }
}

/// What a call created, or why it did not.
pub(super) fn made<T>(
    call: &'static str,
    target: impl Into<String>,
    raw: *mut T,
) -> Result<NonNull<T>, TransportError> {
    NonNull::new(raw).ok_or_else(|| failed(call, target, io::Error::last_os_error()))
}

/// The same for a call that returns its errno.
pub(super) fn check(
    call: &'static str,
    target: impl FnOnce() -> String,
    errno: i32,
) -> Result<(), TransportError> {
    match errno {
        0 => Ok(()),
        // Some providers return -1 and set errno, some return it, some its negative.
        -1 => Err(failed(call, target(), io::Error::last_os_error())),
        e => Err(failed(call, target(), io::Error::from_raw_os_error(e.abs()))),
    }
}

fn advice(call: &str, errno: i32) -> Option<&'static str> {
    Some(match (call, errno) {
        ("ibv_get_device_list", libc::EOPNOTSUPP) => {
            "libibverbs.so.1 is not there: install rdma-core (Debian: libibverbs1 and \
             ibverbs-providers)"
        }
        ("ibv_get_device_list", libc::ENOSYS) => {
            "the kernel has no RDMA devices: is the module ib_uverbs loaded?"
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "this user may not open /dev/infiniband/uverbs*: join its group, or pass the device to \
             the container"
        }
        ("ibv_reg_mr", libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            "raise the limit of locked memory (ulimit -l unlimited; systemd: \
             LimitMEMLOCK=infinity; Slurm: PropagateResourceLimitsExcept=MEMLOCK; docker: --ulimit \
             memlock=-1), or give smaller heaps"
        }
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => {
            "this device's driver, libibverbs or kernel does not support dma-buf (Linux 5.12, \
             rdma-core 34 and drivers of that age do)"
        }
        ("ibv_reg_dmabuf_mr", _) => {
            "dmesg may say why; a GPU behind an IOMMU or without enough BAR1 space cannot be \
             mapped for another device"
        }
        ("ibv_reg_mr, by nvidia-peermem,", _) => {
            "is the module nvidia-peermem loaded (modprobe nvidia-peermem; it comes with the \
             NVIDIA driver)?"
        }
        ("ibv_create_qp" | "ibv_create_cq", libc::ENOMEM) => {
            "the device has no room for another one: fewer processes, or devices with more"
        }
        ("ibv_modify_qp", libc::EINVAL) => {
            "do both ends have a GID of the same kind, and is its index right? nkv doctor lists \
             them"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "no route to the other end's GID: are both devices in one network (ping its address)?"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_errno_comes_with_call_target_and_remedy_however_it_is_returned() {
        for errno in [libc::ENOMEM, -libc::ENOMEM] {
            let text = check("ibv_reg_mr", || "16 MiB".to_string(), errno).unwrap_err().to_string();
            assert!(text.starts_with("ibv_reg_mr on 16 MiB: "), "{text}");
            assert!(text.contains("os error 12") && text.contains("ulimit -l"), "{text}");
        }
        let text = check("ibv_poll_cq", || "a queue".to_string(), libc::EIO).unwrap_err();
        assert!(!text.to_string().contains(';'), "nothing is known to do: {text}");
        assert!(check("ibv_reg_mr", || unreachable!(), 0).is_ok());
    }
}
