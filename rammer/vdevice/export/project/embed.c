/* The bytes of @FILE@, aligned. */
#if defined(__has_embed)
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wc23-extensions"
#endif
extern const unsigned char @SYMBOL@[];
_Alignas(128) const unsigned char @SYMBOL@[] = {
#embed "../@FILE@"
};
#else
#if defined(__APPLE__)
#define SECTION ".const_data\n"
#define LABEL "_@SYMBOL@"
#elif defined(_WIN32)
#define SECTION ".section .rdata,\"dr\"\n"
#define LABEL "@SYMBOL@"
#else
#define SECTION ".section .rodata\n"
#define LABEL "@SYMBOL@"
#endif
__asm__(SECTION ".balign 128\n.globl " LABEL "\n" LABEL ":\n.incbin \"../@FILE@\"\n.byte 0\n.text\n");
#endif
