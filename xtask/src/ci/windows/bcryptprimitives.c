/* ProcessPrng, which Rust's standard library takes random bytes from, over the older function that wine 8 has. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG n_bytes);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T n_bytes)
{
    return SystemFunction036(bytes, (ULONG)n_bytes);
}
