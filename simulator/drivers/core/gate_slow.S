/* The gate is shut: ask C with all argument registers saved. r10d: symbol, r11: body. */
	.text
	.hidden fake_gate_enter
	.hidden fake_gate_leave
	.globl fake_gate_slow
	.hidden fake_gate_slow
	.type fake_gate_slow,@function
fake_gate_slow:
	.cfi_startproc
	pushq %rdi
	pushq %rsi
	pushq %rdx
	pushq %rcx
	pushq %r8
	pushq %r9
	pushq %r11
	.cfi_adjust_cfa_offset 56
	subq $128, %rsp
	.cfi_adjust_cfa_offset 128
	movups %xmm0, (%rsp)
	movups %xmm1, 16(%rsp)
	movups %xmm2, 32(%rsp)
	movups %xmm3, 48(%rsp)
	movups %xmm4, 64(%rsp)
	movups %xmm5, 80(%rsp)
	movups %xmm6, 96(%rsp)
	movups %xmm7, 112(%rsp)
	movl %r10d, %edi
	leaq 184(%rsp), %rsi
	call fake_gate_enter
	movups (%rsp), %xmm0
	movups 16(%rsp), %xmm1
	movups 32(%rsp), %xmm2
	movups 48(%rsp), %xmm3
	movups 64(%rsp), %xmm4
	movups 80(%rsp), %xmm5
	movups 96(%rsp), %xmm6
	movups 112(%rsp), %xmm7
	addq $128, %rsp
	.cfi_adjust_cfa_offset -128
	popq %r11
	popq %r9
	popq %r8
	popq %rcx
	popq %rdx
	popq %rsi
	popq %rdi
	.cfi_adjust_cfa_offset -56
	testl %eax, %eax
	jne 1f
	jmp *%r11
1:	ret
	.cfi_endproc
	.size fake_gate_slow,.-fake_gate_slow

/* The body has returned here instead of to its caller: eax holds its result. */
	.globl fake_gate_after
	.hidden fake_gate_after
	.type fake_gate_after,@function
fake_gate_after:
	pushq %rax
	subq $8, %rsp
	call fake_gate_leave
	movq %rax, %r11
	addq $8, %rsp
	popq %rax
	jmp *%r11
	.size fake_gate_after,.-fake_gate_after
	.section .note.GNU-stack,"",@progbits
