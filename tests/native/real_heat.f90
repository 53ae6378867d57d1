! SPDX-License-Identifier: Apache-2.0
!
! A generator in Fortran: heat spreads over plates, one for each row of the batch. The last axis of C is the
! first one here. Does not use Tenon.
module heat
  use, intrinsic :: iso_c_binding
  implicit none
contains
  integer(c_int) function fill(plate, source, n, index, width, height, steps) bind(C, name="fill")
    integer(c_size_t), value :: n
    integer(c_int64_t), value :: index
    integer(c_int), value :: width, height, steps
    real(c_double), intent(out) :: plate(width, height, n)
    integer(c_int32_t), intent(out) :: source(2, n)
    real(c_double) :: next(width, height)
    integer(c_size_t) :: row
    integer :: x, y, step

    fill = 0
    if (width < 3 .or. height < 3) then
      fill = 2
      return
    end if
    do row = 1, n
      x = 2 + int(mod(index * 7 + row, int(width - 2, c_int64_t)))
      y = 2 + int(mod(index * 3 + row * 5, int(height - 2, c_int64_t)))
      source(:, row) = [y - 1, x - 1]  ! as C counts
      plate(:, :, row) = 0
      plate(x, y, row) = 1000
      do step = 1, steps
        next = plate(:, :, row)
        next(2:width-1, 2:height-1) = 0.25_c_double * ( &
            (plate(1:width-2, 2:height-1, row) + plate(3:width, 2:height-1, row)) &
            + (plate(2:width-1, 1:height-2, row) + plate(2:width-1, 3:height, row)))
        plate(:, :, row) = next
      end do
    end do
  end function
end module
