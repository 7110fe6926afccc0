//! Pools: physical memory in blocks.

use hugefork::{
    Backing, BlockSize, BuildError, ByteSize, Children, Commit, CoreDump, Fallback, PressureWatch, Swap, ZeroedStock,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::Failure;
use crate::options::{choose, region_options};
use crate::region::Region;
use crate::shared::Shared;
use crate::stats;

/// A pool of the engine.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct Pool {
    pub(crate) pool: Shared<hugefork::Pool>,
}

/// Parses a size such as `512 MiB` into bytes.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> Result<usize, Failure> {
    Ok(text.trim().parse::<ByteSize>()?.0)
}

/// All memory that the machine or the container has, in whole blocks. The engine reports it when it refuses a pool.
fn memory_of_machine(block_size: BlockSize) -> Result<usize, BuildError> {
    match hugefork::Pool::builder().capacity(1 << 48).build() {
        Err(BuildError::BeyondTheMachine { available, .. }) => Ok(available / block_size.bytes() * block_size.bytes()),
        Err(error) => Err(error),
        Ok(pool) => Ok(pool.capacity()),
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (capacity, *, name, block_size, backing, strict, commit, obtain_ahead, zeroed_stock, zeroed_cpu_percent, core_dump, swap, exports, children, reclaim_under_pressure))]
    #[expect(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        capacity: Option<usize>,
        name: &str,
        block_size: usize,
        backing: &str,
        strict: bool,
        commit: &str,
        obtain_ahead: Option<usize>,
        zeroed_stock: Option<(usize, usize)>,
        zeroed_cpu_percent: Option<u32>,
        core_dump: bool,
        swap: bool,
        exports: bool,
        children: &str,
        reclaim_under_pressure: bool,
    ) -> Result<Pool, Failure> {
        let regions_of_children = [("inherit", Children::Inherit), ("nothing", Children::HaveNothing)];
        let commits = [("on_demand", Commit::OnDemand), ("upfront", Commit::Upfront)];
        let block_size = BlockSize::new(block_size)?;
        let mut builder = hugefork::Pool::builder()
            .name(name)
            .capacity(capacity.map_or_else(|| memory_of_machine(block_size), Ok)?)
            .block_size(block_size)
            .backing(backing.parse::<Backing>()?)
            .fallback(if strict { Fallback::Refused } else { Fallback::Allowed })
            .commit(choose("commit", commit, &commits)?)
            .core_dump(if core_dump { CoreDump::Included } else { CoreDump::LeftOut })
            .swap(if swap { Swap::Allowed } else { Swap::Refused })
            .exports(exports)
            .children(choose("children", children, &regions_of_children)?);
        if let Some(bytes) = obtain_ahead {
            builder = builder.obtain_ahead(bytes);
        }
        if let Some((low, high)) = zeroed_stock {
            let stock = ZeroedStock::keep(low, high);
            builder = builder.zeroed_stock(match zeroed_cpu_percent {
                Some(percent) => stock.cpu_percent(percent),
                None => stock,
            });
        }
        if reclaim_under_pressure {
            builder = builder.reclaim_under_pressure(PressureWatch::new());
        }
        let pool = py.detach(|| builder.build())?;
        Ok(Pool { pool: Shared::new("pool", pool) })
    }

    #[pyo3(signature = (nbytes, *, reserve, max_cow_bytes, copy_grain, calls_wait))]
    fn region(
        &self,
        py: Python<'_>,
        nbytes: usize,
        reserve: bool,
        max_cow_bytes: Option<usize>,
        copy_grain: &str,
        calls_wait: bool,
    ) -> Result<Region, Failure> {
        let options = region_options(reserve, max_cow_bytes, copy_grain, calls_wait)?;
        let pool = self.pool.get()?;
        Ok(Region::new(py.detach(|| pool.region_with(nbytes, options))?))
    }

    #[getter]
    fn name(&self) -> Result<String, Failure> {
        Ok(self.pool.get()?.name().to_owned())
    }

    #[getter]
    fn capacity(&self) -> Result<usize, Failure> {
        Ok(self.pool.get()?.capacity())
    }

    #[getter]
    fn block_size(&self) -> Result<usize, Failure> {
        Ok(self.pool.get()?.block_size().bytes())
    }

    #[getter]
    fn backing(&self) -> Result<String, Failure> {
        Ok(self.pool.get()?.backing().to_string())
    }

    fn is_inherited(&self) -> Result<bool, Failure> {
        Ok(self.pool.get()?.children() == Children::Inherit)
    }

    #[getter]
    fn fallback_reason(&self) -> Result<Option<String>, Failure> {
        Ok(self.pool.get()?.fallback_reason().map(str::to_owned))
    }

    #[getter]
    fn no_page_grain(&self) -> Result<Option<String>, Failure> {
        Ok(self.pool.get()?.no_page_grain())
    }

    fn reclaim(&self, py: Python<'_>, nbytes: usize) -> Result<usize, Failure> {
        let pool = self.pool.get()?;
        Ok(py.detach(|| pool.reclaim(nbytes))?)
    }

    fn trim(&self, py: Python<'_>) -> Result<usize, Failure> {
        let pool = self.pool.get()?;
        Ok(py.detach(|| pool.trim())?)
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let pool = self.pool.get()?;
        let stats = py.detach(|| pool.stats());
        Ok(stats::of_pool(py, &stats)?)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.pool.is_closed()
    }

    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.pool.close(py)
    }
}
